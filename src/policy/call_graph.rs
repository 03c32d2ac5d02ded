//! The calls between rules, which must not form a circle.
//!
//! The engine evaluates rules by recursion and has no limit of its own. A rule that reaches itself
//! would exhaust the stack and end the process, so such policies are refused when they are loaded,
//! as Open Policy Agent refuses them. References are found in the text of a rule, which may find
//! too many, and never too few: a name counts if it is called, or if the rule declares no such variable.

use std::collections::{BTreeMap, BTreeSet};

use regorus::unstable::{Module, Rule};

/// Most rules that call each other in a row. It bounds the stack.
const CHAIN_MAX: usize = 100;

/// A rule: its package and its name.
type RuleName = (String, String);

/// The calls between the rules of all files.
#[derive(Debug, Default)]
pub(super) struct CallGraph {
    calls: BTreeMap<RuleName, BTreeSet<RuleName>>,
}

impl CallGraph {
    /// Reads the calls of parsed files, each with the path of its package.
    pub(super) fn from_modules(modules: &[(String, &Module)]) -> Self {
        let mut graph = Self::default();
        for (package, module) in modules {
            for rule in &module.policy {
                let Some(name) = rule_name(&tokens(rule_text(rule))) else { continue };
                graph.calls.entry((package.clone(), name)).or_default();
            }
        }
        for (package, module) in modules {
            let aliases = aliases(module);
            for rule in &module.policy {
                graph.add_rule(package, &aliases, &tokens(rule_text(rule)));
            }
        }
        graph
    }

    fn add_rule(
        &mut self,
        package: &str,
        aliases: &BTreeMap<String, Vec<String>>,
        tokens: &[Token<'_>],
    ) {
        let Some(name) = rule_name(tokens) else { return };
        let (variables, none) = (variables(tokens), BTreeSet::new());
        let mut called = BTreeSet::new();
        let mut at = head_end(tokens);
        while at < tokens.len() {
            let (path, next) = path_at(tokens, at);
            let Some(path) = path else {
                at += 1;
                continue;
            };
            // The engine looks up a called name among the rules, whatever variables there are.
            let is_call = tokens.get(next) == Some(&Token::Mark('('));
            let hiding = if is_call { &none } else { &variables };
            let found = self.resolve(package, aliases, hiding, &path);
            let is_mock = at > 0 && tokens[at - 1] == Token::Word("with");
            if is_mock && tokens.get(next) == Some(&Token::Word("as")) {
                // A rule that calls the replaced rule then calls the other one.
                if let (Some(other), _) = path_at(tokens, next + 1) {
                    let others = self.resolve(package, aliases, &variables, &other);
                    for replaced in &found {
                        let calls = self.calls.entry(replaced.clone()).or_default();
                        calls.extend(others.iter().cloned());
                    }
                }
            }
            called.extend(found);
            at = next.max(at + 1);
        }
        self.calls.entry((package.to_owned(), name)).or_default().extend(called);
    }

    /// Returns the rules that a path may refer to.
    fn resolve(
        &self,
        package: &str,
        aliases: &BTreeMap<String, Vec<String>>,
        variables: &BTreeSet<&str>,
        path: &[&str],
    ) -> BTreeSet<RuleName> {
        let (first, rest) = (path[0], &path[1..]);
        if variables.contains(first) {
            return BTreeSet::new();
        }
        if first == "data" {
            return self.rules_at(rest);
        }
        if let Some(alias) = aliases.get(first) {
            let whole: Vec<&str> = alias.iter().map(String::as_str).chain(rest.to_vec()).collect();
            return self.rules_at(&whole);
        }
        let own = (package.to_owned(), first.to_owned());
        self.calls.contains_key(&own).then_some(own).into_iter().collect()
    }

    /// Returns the rules at a path below `data`: one rule, or all rules of the packages below it.
    fn rules_at(&self, path: &[&str]) -> BTreeSet<RuleName> {
        let is_at = |(package, name): &&RuleName| {
            let own: Vec<&str> = package.split('.').chain([name.as_str()]).collect();
            // The engine decodes escapes, so a text with one may be any name.
            own.iter().zip(path).all(|(own, named)| own == named || named.contains('\\'))
        };
        self.calls.keys().filter(is_at).cloned().collect()
    }

    /// Returns what is wrong with the calls, with the rule that it is about.
    pub(super) fn problem(&self) -> Option<(RuleName, String)> {
        let mut callers: BTreeMap<&RuleName, Vec<&RuleName>> = BTreeMap::new();
        let mut open: BTreeMap<&RuleName, usize> = BTreeMap::new();
        for (rule, calls) in &self.calls {
            open.insert(rule, calls.len());
            for called in calls {
                callers.entry(called).or_default().push(rule);
            }
        }
        let mut chains: BTreeMap<&RuleName, usize> = BTreeMap::new();
        let done = |open: &BTreeMap<&RuleName, usize>, rule: &RuleName| open.get(rule) == Some(&0);
        let mut ready: Vec<&RuleName> =
            self.calls.keys().filter(|rule| done(&open, rule)).collect();
        while let Some(rule) = ready.pop() {
            open.remove(rule);
            let chain = chains.get(rule).copied().unwrap_or(0) + 1;
            if chain > CHAIN_MAX {
                let why = format!("more than {CHAIN_MAX} rules call each other in a row");
                return Some((rule.clone(), why));
            }
            for caller in callers.get(rule).into_iter().flatten() {
                let known = chains.entry(caller).or_default();
                *known = (*known).max(chain);
                if let Some(left) = open.get_mut(*caller) {
                    *left -= 1;
                    if *left == 0 {
                        ready.push(caller);
                    }
                }
            }
        }
        let first = *open.keys().next()?;
        // Each rule that is left calls a rule that is left, so the walk comes back.
        let (mut circle, mut rule) = (vec![first], first);
        loop {
            rule = self.calls[rule].iter().find(|called| open.contains_key(called))?;
            if let Some(start) = circle.iter().position(|known| *known == rule) {
                let names: Vec<&str> =
                    circle[start..].iter().chain([&rule]).map(|(_, name)| name.as_str()).collect();
                let why = format!("its rules call themselves: {}", names.join(" calls "));
                return Some((rule.clone(), why));
            }
            circle.push(rule);
        }
    }
}

fn rule_text(rule: &Rule) -> &str {
    match rule {
        Rule::Spec { span, .. } | Rule::Default { span, .. } => span.text(),
    }
}

/// Returns the imported paths below `data`, by the name that refers to them.
fn aliases(module: &Module) -> BTreeMap<String, Vec<String>> {
    let alias = |import: &regorus::unstable::Import| {
        let text = tokens(import.refr.span().text());
        let (path, _) = path_at(&text, 0);
        let path = path.filter(|path| path[0] == "data")?;
        let name = import.r#as.as_ref().map_or(*path.last()?, |name| name.text());
        Some((name.to_owned(), path[1..].iter().map(|part| (*part).to_owned()).collect()))
    };
    module.imports.iter().filter_map(alias).collect()
}

/// A token of a rule. Comments and spaces are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    /// The text between quotes, as it is written.
    Text(&'a str),
    Mark(char),
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    while let Some(c) = rest.chars().next() {
        let end = match c {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '"' => {
                let end = quoted_end(rest);
                found.push(Token::Text(&rest[1..end]));
                (end + 1).min(rest.len())
            }
            '`' => {
                let end = rest[1..].find('`').map_or(rest.len(), |at| at + 1);
                found.push(Token::Text(&rest[1..end]));
                (end + 1).min(rest.len())
            }
            c if is_word(c) => {
                let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
                found.push(Token::Word(&rest[..end]));
                end
            }
            c => {
                if !c.is_whitespace() {
                    found.push(Token::Mark(c));
                }
                c.len_utf8()
            }
        };
        rest = &rest[end..];
    }
    found
}

/// Returns where the text that begins with a quote ends: at its closing quote.
fn quoted_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    text.len()
}

/// Returns the path at a token, such as `data.lib.f` or `data["lib"].f`, and the token after it.
/// Fields of other values are no path.
fn path_at<'a>(tokens: &[Token<'a>], at: usize) -> (Option<Vec<&'a str>>, usize) {
    let is_field = at > 0 && tokens[at - 1] == Token::Mark('.');
    let Some(Token::Word(first)) = tokens.get(at).filter(|_| !is_field) else {
        return (None, at + 1);
    };
    let (mut path, mut next) = (vec![*first], at + 1);
    loop {
        match tokens.get(next..) {
            Some([Token::Mark('.'), Token::Word(word), ..]) => {
                path.push(*word);
                next += 2;
            }
            Some([Token::Mark('['), Token::Text(text), Token::Mark(']'), ..]) => {
                path.push(*text);
                next += 3;
            }
            _ => return (Some(path), next),
        }
    }
}

/// Returns where the name of a rule begins.
fn name_start(tokens: &[Token<'_>]) -> usize {
    usize::from(tokens.first() == Some(&Token::Word("default")))
}

fn rule_name(tokens: &[Token<'_>]) -> Option<String> {
    match tokens.get(name_start(tokens))? {
        Token::Word(name) => Some((*name).to_owned()),
        Token::Text(_) | Token::Mark(_) => None,
    }
}

/// Returns the token after the name of a rule.
fn head_end(tokens: &[Token<'_>]) -> usize {
    path_at(tokens, name_start(tokens)).1
}

/// Returns the names that a rule declares: arguments, and variables of `:=`, `some` and `every`.
fn variables<'a>(tokens: &[Token<'a>]) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let head = head_end(tokens);
    if tokens.get(head) == Some(&Token::Mark('(')) {
        let arguments = tokens[head..].iter().take_while(|token| **token != Token::Mark(')'));
        found.extend(arguments.filter_map(|token| match token {
            Token::Word(word) => Some(*word),
            Token::Text(_) | Token::Mark(_) => None,
        }));
    }
    for (at, window) in tokens.windows(3).enumerate().skip(head) {
        if let [Token::Word(word), Token::Mark(':'), Token::Mark('=')] = window {
            found.insert(*word);
        }
        if let [Token::Word("some" | "every"), Token::Word(_), _] = window {
            for pair in tokens[at + 1..].chunks(2) {
                let Some(Token::Word(word)) = pair.first() else { break };
                found.insert(*word);
                if pair.get(1) != Some(&Token::Mark(',')) {
                    break;
                }
            }
        }
    }
    found
}
