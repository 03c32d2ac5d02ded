//! Arguments that choose the format of a result.

use clap::{Args, ValueEnum};

/// The view of a plan.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(in crate::cli) struct ViewArgs {
    /// Format: text, wide, json, yaml, markdown, html or github
    ///
    /// `text`: for a terminal. `wide`: text with node names, instances, sizes and ages. `json`: the
    /// plan itself; stable. `yaml`: the same document as YAML. `markdown`: for a comment, at most
    /// 60,000 characters. `html`: a self-contained page. `github`: annotations of a GitHub workflow,
    /// at the lines that cause changes.
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", alias = "output")]
    #[arg(default_value_t = PlanFormatArg::Text, hide_possible_values = true)]
    pub(in crate::cli) format: PlanFormatArg,
    /// Write a stream of messages, as `terraform plan -json` does
    ///
    /// Each line is one JSON object.
    #[arg(long, conflicts_with = "format")]
    pub(in crate::cli) json: bool,
    /// Leave the rows of unchanged nodes out of JSON, YAML and the file of --out
    ///
    /// Their common properties are stated once, below `unchanged`. Digest and plan stay the same:
    /// `apply`, `show` and `approve` read both forms.
    #[arg(long, conflicts_with = "json", hide_short_help = true)]
    pub(in crate::cli) changes_only: bool,
    /// Show header, table and errors only
    #[arg(long, conflicts_with = "summary")]
    pub(in crate::cli) concise: bool,
    /// Show header and errors only
    #[arg(long)]
    pub(in crate::cli) summary: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum PlanFormatArg {
    /// For a terminal
    Text,
    /// Text with node names, instances, sizes and ages
    Wide,
    /// The plan itself; stable
    Json,
    /// The JSON document as YAML
    Yaml,
    /// For a comment: at most 60,000 characters
    Markdown,
    /// A self-contained page
    Html,
    /// Annotations of a GitHub workflow, at the lines that cause changes
    Github,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ValidateFormatArg {
    /// For a terminal
    Text,
    /// For programs; stable
    Json,
    /// The JSON document as YAML
    Yaml,
    /// SARIF 2.1.0 for code scanning
    Sarif,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct FormatArgs {
    /// Format: text, json or yaml
    ///
    /// `text`: for a terminal. `json`: for programs; stable. `yaml`: the same document as YAML.
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", alias = "output")]
    #[arg(default_value_t = FormatArg::Text, hide_possible_values = true)]
    pub(in crate::cli) format: FormatArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum FormatArg {
    /// For a terminal
    Text,
    /// For programs; stable
    Json,
    /// The JSON document as YAML
    Yaml,
}
