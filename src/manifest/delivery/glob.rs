//! Patterns of paths in the dialects of the delivery tools.
//!
//! Each place has a dialect of its own: in one, `*` stops at a `/`; in another, it does not. The
//! dialects are translated to that of `globset`, which matches in linear time.

use globset::{GlobBuilder, GlobMatcher};

use super::super::decode::shorten;
use super::super::settings::is_within;

/// The dialect of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum GlobDialect {
    /// `directory.include` and `directory.exclude` of Argo CD (gobwas/glob without separators): `*`
    /// also matches `/`.
    ArgoDirectory,
    /// Files of a Git generator (`git ls-files`): `*` also matches `/`, and a directory's path
    /// stands for all of its files.
    GitPathspec,
    /// Directories of a Git generator (`path.Match` of Go): `*` matches no `/`.
    GoPath,
    /// Values files of Argo CD (doublestar): `*` matches no `/`, and `**` any directories.
    Doublestar,
}

/// A pattern of paths.
#[derive(Debug, Clone)]
pub(in super::super) struct PathPattern {
    text: String,
    dialect: GlobDialect,
    matcher: GlobMatcher,
}

impl PartialEq for PathPattern {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, self.dialect) == (&other.text, other.dialect)
    }
}

impl Eq for PathPattern {}

impl PathPattern {
    pub(in super::super) fn new(text: &str, dialect: GlobDialect) -> Result<Self, String> {
        if dialect == GlobDialect::GitPathspec && text.starts_with(':') {
            let text = shorten(text);
            return Err(format!("its pattern `{text}` has magic of Git, which is not supported"));
        }
        let is_doublestar = dialect == GlobDialect::Doublestar;
        let has_alternatives = is_doublestar || dialect == GlobDialect::ArgoDirectory;
        let translated =
            if is_doublestar { text.to_owned() } else { translated(text, has_alternatives) };
        let glob = GlobBuilder::new(&translated)
            .literal_separator(is_doublestar || dialect == GlobDialect::GoPath)
            .empty_alternates(true)
            .backslash_escape(true)
            .build()
            .map_err(|error| {
                format!("its pattern `{}` cannot be read: {}", shorten(text), error.kind())
            })?;
        Ok(Self { text: text.to_owned(), dialect, matcher: glob.compile_matcher() })
    }

    /// Returns whether `path` matches.
    pub(in super::super) fn matches(&self, path: &str) -> bool {
        let is_in_directory = || {
            let directory = self.text.trim_end_matches('/');
            self.dialect == GlobDialect::GitPathspec && is_within(path, directory)
        };
        self.matcher.is_match(path) || is_in_directory()
    }
}

/// Returns a pattern for `globset`, where `**` and braces have meanings that the dialect lacks.
fn translated(pattern: &str, has_alternatives: bool) -> String {
    let mut out = String::with_capacity(pattern.len());
    let (mut letters, mut is_star, mut is_class) = (pattern.chars(), false, false);
    while let Some(letter) = letters.next() {
        let was_star = std::mem::replace(&mut is_star, letter == '*' && !is_class);
        match letter {
            '\\' if !is_class => {
                out.push(letter);
                out.extend(letters.next());
            }
            // Several stars match what one matches.
            '*' if was_star => {}
            '{' | '}' if !is_class && !has_alternatives => out.extend(['\\', letter]),
            '[' if !is_class => {
                is_class = true;
                out.push(letter);
            }
            ']' => {
                is_class = false;
                out.push(letter);
            }
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(dialect: GlobDialect, cases: &[(&str, &str, bool)]) {
        for (pattern, path, expected) in cases {
            let read = PathPattern::new(pattern, dialect).expect("it is a pattern");
            assert_eq!(read.matches(path), *expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_star_of_a_directory_source_crosses_directories() {
        check(
            GlobDialect::ArgoDirectory,
            &[
                ("*.yaml", "a.yaml", true),
                ("*.yaml", "sub/b.yaml", true),
                ("*.yaml", "a.yml", false),
                ("{*.yaml,*.yml}", "sub/a.yml", true),
                ("*/test/*", "x/y/test/z.yaml", true),
                ("staging*", "staging/b.yaml", true),
                ("**/prod.yaml", "prod.yaml", false),
                ("**/prod.yaml", "a/b/prod.yaml", true),
                ("a?c", "abc", true),
                ("a?c", "ac", false),
                ("[ab].yaml", "b.yaml", true),
                ("[!ab].yaml", "b.yaml", false),
                ("a{,-x}.yaml", "a.yaml", true),
                ("\\*.yaml", "a.yaml", false),
            ],
        );
    }

    #[test]
    fn a_star_of_a_files_generator_crosses_directories() {
        check(
            GlobDialect::GitPathspec,
            &[
                ("apps/*/config.yaml", "apps/one/config.yaml", true),
                ("apps/*/config.yaml", "apps/team/two/config.yaml", true),
                ("apps/**/config.yaml", "apps/config.yaml", false),
                ("apps", "apps/one/config.yaml", true),
                ("apps/", "apps/one/config.yaml", true),
                ("app", "apps/one/config.yaml", false),
                ("{a,b}.yaml", "a.yaml", false),
                ("{a,b}.yaml", "{a,b}.yaml", true),
            ],
        );
        assert!(PathPattern::new(":(glob)*", GlobDialect::GitPathspec).is_err());
    }

    #[test]
    fn a_star_of_a_directory_generator_stays_within_a_name() {
        check(
            GlobDialect::GoPath,
            &[
                ("apps/*", "apps/shop", true),
                ("apps/*", "apps/shop/prod", false),
                ("apps/**", "apps/shop/prod", false),
                ("apps/[a-z]*", "apps/one", true),
                ("apps/[^a-z]*", "apps/one", false),
                ("apps/{one,two}", "apps/one", false),
                ("", "", true),
            ],
        );
    }

    #[test]
    fn two_stars_of_a_values_file_match_directories() {
        check(
            GlobDialect::Doublestar,
            &[
                ("env/*.yaml", "env/prod.yaml", true),
                ("env/*.yaml", "env/eu/prod.yaml", false),
                ("env/**/*.yaml", "env/eu/prod.yaml", true),
                ("env/**/*.yaml", "env/prod.yaml", true),
            ],
        );
    }

    #[test]
    fn hostile_patterns_end() {
        for pattern in ["{a,b}".repeat(40), "*a".repeat(2_000)] {
            let read = PathPattern::new(&pattern, GlobDialect::ArgoDirectory);
            assert!(read.is_ok_and(|read| !read.matches(&"a".repeat(1_000))));
        }
        assert!(PathPattern::new("[", GlobDialect::GoPath).is_err());
    }
}
