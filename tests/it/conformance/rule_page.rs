//! Parses the sections, cases and tables of Markdown pages of rules.

/// A page of rules.
#[derive(Debug, Default)]
pub(crate) struct RulePage {
    pub(crate) name: String,
    pub(crate) sections: Vec<RuleSection>,
    /// Rows of its table, with their line numbers.
    pub(crate) rows: Vec<(usize, RuleSource)>,
}

/// A section with one rule.
#[derive(Debug)]
pub(crate) struct RuleSection {
    pub(crate) line: usize,
    pub(crate) title: String,
    pub(crate) sources: Vec<RuleSource>,
    pub(crate) cases: Vec<RuleCase>,
}

/// An example of a rule.
#[derive(Debug)]
pub(crate) struct RuleCase {
    /// Line number of its fence.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// An entry of a list of behaviors.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RuleSource {
    pub(crate) list: String,
    pub(crate) number: u32,
}

impl RuleSource {
    /// Parses `Karpenter 29`.
    fn parse(text: &str) -> Option<Self> {
        let (list, number) = text.trim().split_once(' ')?;
        let is_list = super::LISTS.iter().any(|(name, _)| *name == list);
        Some(Self { list: list.to_owned(), number: number.parse().ok()? }).filter(|_| is_list)
    }
}

/// Parses a line that consists of sources.
fn sources(line: &str) -> Option<Vec<RuleSource>> {
    line.split(',').map(RuleSource::parse).collect()
}

impl RulePage {
    pub(crate) fn read(name: &str, text: &str) -> Self {
        let mut page = Self { name: name.to_owned(), ..Self::default() };
        let mut open: Option<RuleCase> = None;
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            match &mut open {
                Some(_) if line == "```" => {
                    let section = page.sections.last_mut();
                    let section = section.unwrap_or_else(|| panic!("{name}:{number}: no rule"));
                    section.cases.extend(open.take());
                }
                Some(case) => {
                    case.text.push_str(line);
                    case.text.push('\n');
                }
                None if line == "```case" => {
                    open = Some(RuleCase { line: number, text: String::new() });
                }
                None => page.prose(number, line),
            }
        }
        assert!(open.is_none(), "{name}: the last case is not closed");
        page
    }

    fn prose(&mut self, line: usize, text: &str) {
        if let Some(title) = text.strip_prefix("## ") {
            let title = title.to_owned();
            self.sections.push(RuleSection { line, title, sources: Vec::new(), cases: Vec::new() });
        } else if let Some(cell) = text.strip_prefix("| ").and_then(|row| row.split('|').next()) {
            self.rows.extend(RuleSource::parse(cell).map(|source| (line, source)));
        } else if let Some((section, sources)) = self.sections.last_mut().zip(sources(text)) {
            section.sources.extend(sources);
        }
    }
}
