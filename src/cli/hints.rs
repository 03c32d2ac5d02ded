//! Hints for habits of other tools: a word that is not ours gets the one that is.

use std::ffi::OsString;

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use super::error::CliError;

/// Where to get a build that reads and changes clusters.
pub(super) const CLUSTER_BUILD: &str = "the release binary, the container image and each build with default features have it: cargo install \
     --locked --git https://github.com/fleetwright/fleetwright";

/// Options of Terraform and kubectl that no command or not every command has, with the way to the
/// same end.
const OPTIONS: [(&str, &str); 28] = [
    ("A", "every command covers all namespaces"),
    ("all-namespaces", "every command covers all namespaces"),
    ("backend-config", "no state is stored: leave it out"),
    ("chdir", "name the directory as the argument: fleetwright plan DIR"),
    ("context", "select it first: kubectl config use-context NAME"),
    ("destroy", "remove workloads or NodePools from the files, then plan and apply"),
    ("dry-run", "`plan` changes nothing: fleetwright plan"),
    ("f", "name the directory as the argument: fleetwright plan DIR"),
    ("filename", "name the directory as the argument: fleetwright plan DIR"),
    ("input", "questions are asked only on a terminal: leave it out"),
    ("json", "most commands have --format json"),
    ("kubeconfig", "set the variable KUBECONFIG"),
    ("lock", "`apply` always takes the lock: leave it out"),
    ("n", "a plan covers every namespace; for one workload: fleetwright explain NAMESPACE/NAME"),
    (
        "namespace",
        "a plan covers every namespace; for one workload: fleetwright explain NAMESPACE/NAME",
    ),
    ("parallelism", "the controller and `apply` limit their own requests: leave it out"),
    ("profile", "set the variable AWS_PROFILE"),
    ("refresh", "every plan observes the cluster anew: leave it out"),
    ("refresh-only", "use `fleetwright drift`"),
    ("region", "set spec.cluster.region in fleetwright.yaml"),
    ("state", "no state is stored; `fleetwright observe` saves the state of the cluster"),
    ("upgrade", "nothing is downloaded: leave it out"),
    ("var", "write settings to fleetwright.yaml, and placeholders to spec.sources[].vars"),
    ("var-file", "write settings to fleetwright.yaml, and placeholders to spec.sources[].vars"),
    (
        "w",
        "for a page that is updated: fleetwright plan --serve; for the controller: fleetwright run",
    ),
    (
        "watch",
        "for a page that is updated: fleetwright plan --serve; for the controller: fleetwright run",
    ),
    ("wide", "`plan` and `show` have it: --format wide"),
    ("y", "to apply without a question: --auto-approve"),
];

/// Commands of Terraform and kubectl, with the way to the same end.
const COMMANDS: [(&str, &str); 30] = [
    (
        "capacity",
        "use `fleetwright catalog list --allocatable` for instance types, `fleetwright plan` for \
         nodes",
    ),
    ("check", "use `fleetwright validate` for the files, `fleetwright doctor` for this computer"),
    ("config", "settings are in fleetwright.yaml; `fleetwright init` writes one"),
    ("console", "use `fleetwright explain`"),
    ("controller", "use `fleetwright run`"),
    ("cost", "use `fleetwright plan`; `fleetwright forecast` for the coming week"),
    ("delete", "remove workloads or NodePools from the files, then plan and apply"),
    ("describe", "use `fleetwright explain NAMESPACE/NAME`"),
    ("destroy", "remove workloads or NodePools from the files, then plan and apply"),
    ("fmt", "files keep their form; `fleetwright validate` reports problems in them"),
    ("get", "use `kubectl get`, or `fleetwright observe` for the state of the cluster"),
    ("graph", "use `fleetwright plan -o html`"),
    ("import", "use `fleetwright adopt`: it takes over nodes that Karpenter launched"),
    ("lint", "use `fleetwright validate`"),
    ("list", "use `fleetwright catalog list` for instance types, `fleetwright plan` for nodes"),
    ("login", "use the credentials of the AWS CLI, such as `aws sso login`"),
    ("logs", "the controller logs to stderr: kubectl logs"),
    ("output", "use `fleetwright show PLAN -o json`"),
    ("price", "use `fleetwright catalog list` for instance types, `fleetwright plan` for nodes"),
    ("prices", "use `fleetwright catalog list` for instance types, `fleetwright plan` for nodes"),
    ("providers", "use `fleetwright version` for the features of this build"),
    ("refresh", "every plan observes the cluster anew; `fleetwright drift` shows the differences"),
    ("rollback", "revert the commit in Git, then plan and apply"),
    ("simulate", "use `fleetwright sandbox`, or --world sim:DIR"),
    ("state", "no state is stored; `fleetwright observe` saves the state of the cluster"),
    ("status", "use `fleetwright drift`, or `fleetwright plan --summary`"),
    ("taint", "use `fleetwright plan --replace ADDRESS`"),
    ("test", "use `fleetwright policy test`"),
    ("untaint", "leave --replace out of `fleetwright plan`"),
    ("workspace", "one directory with a fleetwright.yaml is one cluster"),
];

/// Returns the error of an option that is typed with one dash, as Terraform has it.
///
/// It is found before the arguments are parsed: `-out=p.json` would be read as `-o`.
pub(super) fn single_dash(arguments: &[OsString], command: &Command) -> Option<CliError> {
    let typed = arguments.iter().skip(1).map_while(|word| word.to_str());
    for word in typed.take_while(|word| *word != "--") {
        let Some(option) = word.strip_prefix('-').filter(|rest| !rest.starts_with('-')) else {
            continue;
        };
        let name = option.split_once('=').map_or(option, |(name, _)| name);
        if name.len() < 3 {
            continue;
        }
        if has_option(command, name) {
            return Some(
                CliError::text(format!("`{word}` is not an option"))
                    .hint(format!("options have two dashes: --{option}")),
            );
        }
        if let Some(hint) = find(&OPTIONS, name) {
            return Some(CliError::text(format!("`{word}` is not an option")).hint(hint));
        }
    }
    None
}

/// Returns whether a command or one of its subcommands has the long option.
fn has_option(command: &Command, name: &str) -> bool {
    command.get_arguments().any(|arg| {
        arg.get_long() == Some(name)
            || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    }) || command.get_subcommands().any(|inner| has_option(inner, name))
        || matches!(name, "help" | "version")
}

/// Adds hints to an error of the parser.
pub(super) fn add(mut error: Error) -> Error {
    let kind = error.kind();
    let hint = if kind == ErrorKind::InvalidSubcommand {
        text(&error, ContextKind::InvalidSubcommand).and_then(|word| command_hint(&word))
    } else if kind == ErrorKind::UnknownArgument {
        text(&error, ContextKind::InvalidArg).and_then(|arg| {
            if arg.starts_with('-') { option_hint(&arg) } else { argument_hint(&error, &arg) }
        })
    } else if kind == ErrorKind::InvalidValue {
        output_hint(&error)
    } else {
        None
    };
    if let Some(hint) = hint {
        // The nearest of our own words would contradict the hint.
        for kind in [
            ContextKind::SuggestedSubcommand,
            ContextKind::SuggestedArg,
            ContextKind::SuggestedValue,
            ContextKind::Usage,
        ] {
            error.remove(kind);
        }
        let hints = vec![StyledStr::from(hint)];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(hints));
    }
    error
}

fn text(error: &Error, kind: ContextKind) -> Option<String> {
    let ContextValue::String(text) = error.get(kind)? else { return None };
    Some(text.clone())
}

fn find(table: &[(&'static str, &'static str)], word: &str) -> Option<&'static str> {
    table.iter().find(|(name, _)| *name == word).map(|(_, hint)| *hint)
}

fn command_hint(word: &str) -> Option<String> {
    let built = match word {
        "preflight" => Some(format!("this build has no cluster support; {CLUSTER_BUILD}")),
        "sandbox" | "comment" => Some(format!(
            "this build has no `{word}`: build it with default features, as the release binary is"
        )),
        _ => None,
    };
    built.or_else(|| find(&COMMANDS, word).map(str::to_owned))
}

/// `apply` takes a plan or a directory. The directory of a plan is an option.
fn argument_hint(error: &Error, arg: &str) -> Option<String> {
    let ContextValue::StyledStr(usage) = error.get(ContextKind::Usage)? else { return None };
    let is_apply = usage.to_string().contains("fleetwright apply");
    is_apply.then(|| format!("name the directory of a saved plan with --path {arg}"))
}

fn option_hint(arg: &str) -> Option<String> {
    let name = arg.trim_start_matches('-');
    let name = name.split_once('=').map_or(name, |(name, _)| name);
    match name {
        "yes" => find(&OPTIONS, "y"),
        "serve" | "listen" | "listen-name" | "webhook-secret" if cfg!(not(feature = "page")) => {
            Some("this build serves no pages: build it with default features")
        }
        name => find(&OPTIONS, name),
    }
    .map(str::to_owned)
}

/// `-o FILE` is a file in many tools, and a format here.
fn output_hint(error: &Error) -> Option<String> {
    let of_format = text(error, ContextKind::InvalidArg)?.contains("--format");
    let value = text(error, ContextKind::InvalidValue)?;
    (of_format && value.contains(['.', '/'])).then(|| format!("to write a file: --out {value}"))
}

#[cfg(test)]
mod tests {
    use crate::cli::tests::run_command;

    #[test]
    fn option_with_one_dash_is_shown_with_two() {
        for (typed, hint) in [
            (&["plan", "-out=p.json"][..], "options have two dashes: --out=p.json"),
            (&["plan", "-out", "p.json"], "options have two dashes: --out"),
            (&["plan", "-json"], "options have two dashes: --json"),
            (&["plan", "-no-color"], "options have two dashes: --no-color"),
            (&["apply", "-auto-approve"], "options have two dashes: --auto-approve"),
            (&["plan", "-var", "a=b"], "spec.sources[].vars"),
            (&["init", "-upgrade"], "nothing is downloaded"),
            (&["plan", "-refresh=false"], "leave it out"),
        ] {
            let ran = run_command(typed);
            assert_eq!(ran.exit.code(), 1, "{typed:?}");
            assert!(ran.err.contains("is not an option"), "{}", ran.err);
            assert!(ran.err.contains(hint), "{}", ran.err);
        }
    }

    #[test]
    fn word_of_another_tool_gets_a_hint() {
        for (typed, hint) in [
            (&["destroy"][..], "remove workloads or NodePools from the files"),
            (&["state", "list"], "no state is stored"),
            (&["price"], "fleetwright catalog list"),
            (&["drift", "--json"], "most commands have --format json"),
            (&["plan", "--watch"], "fleetwright plan --serve"),
            (&["plan", "-n", "shop"], "fleetwright explain NAMESPACE/NAME"),
            (&["plan", "-o", "p.json"], "to write a file: --out p.json"),
            (&["apply", "--yes"], "--auto-approve"),
            (&["apply", "p.json", "w"], "name the directory of a saved plan with --path w"),
        ] {
            let ran = run_command(typed);
            assert_eq!(ran.exit.code(), 1, "{typed:?}");
            assert!(ran.err.contains("tip:") && ran.err.contains(hint), "{}", ran.err);
        }
    }

    #[cfg(not(feature = "cluster"))]
    #[test]
    fn command_of_another_build_names_that_build() {
        let ran = run_command(&["preflight"]);
        assert!(ran.err.contains("cargo install") && ran.err.contains("default features"));
    }
}
