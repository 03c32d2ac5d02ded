//! Glob patterns over paths: `*` and `?` within a name, `**` over directories, `{a,b}` for
//! alternatives.

/// Maximum number of alternatives of one pattern.
const ALTERNATIVES_MAX: usize = 64;

/// Returns whether `path` matches `pattern`.
pub(in super::super) fn matches(pattern: &str, path: &str) -> bool {
    let names: Vec<&str> = path.split('/').collect();
    let fits = |pattern: String| {
        let parts: Vec<&str> = pattern.split('/').collect();
        matches_path(&parts, &names)
    };
    alternatives(pattern).into_iter().any(fits)
}

/// Returns the patterns that `{a,b}` stands for.
fn alternatives(pattern: &str) -> Vec<String> {
    let mut done = Vec::new();
    let mut open = vec![pattern.to_owned()];
    while let Some(text) = open.pop() {
        let group = text.find('{').and_then(|from| Some((from, from + text[from..].find('}')?)));
        match group {
            Some((from, to)) if done.len() + open.len() < ALTERNATIVES_MAX => {
                let each = text[from + 1..to].split(',');
                open.extend(each.map(|word| format!("{}{word}{}", &text[..from], &text[to + 1..])));
            }
            Some(_) | None => done.push(text),
        }
    }
    done
}

fn matches_path(parts: &[&str], names: &[&str]) -> bool {
    // `ways[n]` is true if the parts so far match the first n names.
    let mut ways = vec![false; names.len() + 1];
    ways[0] = true;
    for part in parts {
        let mut next = vec![false; names.len() + 1];
        if *part == "**" {
            let mut any = false;
            for (way, next) in ways.iter().zip(&mut next) {
                any |= *way;
                *next = any;
            }
        } else {
            for (at, name) in names.iter().enumerate() {
                next[at + 1] = ways[at] && matches_name(part.as_bytes(), name.as_bytes());
            }
        }
        ways = next;
    }
    ways[names.len()]
}

fn matches_name(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => {
                p += 1;
                n += 1;
            }
            Some(_) | None => {
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                p = at + 1;
                n = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_within_a_name_and_two_do_not() {
        for (pattern, path, expected) in [
            ("apps/*", "apps/shop", true),
            ("apps/*", "apps/shop/prod", false),
            ("apps/**", "apps/shop/prod", true),
            ("**/prod", "apps/shop/prod", true),
            ("apps/*/prod", "apps/shop/prod", true),
            ("*.yaml", "a.yaml", true),
            ("*.yaml", "a.yml", false),
            ("{*.yaml,*.yml}", "a.yml", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b", "xxaxxb", true),
            ("", "", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn hostile_patterns_end() {
        let pattern = "{a,b}".repeat(40);
        assert!(!matches(&pattern, "x"));
        assert!(!matches(&"*a".repeat(2_000), &"a".repeat(1_000)));
    }
}
