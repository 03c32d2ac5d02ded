//! Variables of Argo CD in values files, parameters and labels, and overrides beside a source.

use serde_json::Value as Json;

use super::super::repository_layout::join_path;
use super::super::yaml::{self, YamlNode, to_json};
use super::DeliveryContext;

/// Prefix of the variables.
const PREFIX: &str = "ARGOCD_";

/// Keys of a source that a file beside it cannot override.
const FIXED_KEYS: [&str; 4] = ["chart", "path", "repoURL", "targetRevision"];

/// The variables of a source.
pub(super) struct BuildEnvironment<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) project: &'a str,
    pub(super) source_path: &'a str,
    pub(super) source_url: &'a str,
    pub(super) source_revision: &'a str,
}

impl BuildEnvironment<'_> {
    /// Returns whether `text` starts with a variable of Argo CD.
    pub(super) fn starts_with_variable(text: &str) -> bool {
        let name = text.strip_prefix("${").or_else(|| text.strip_prefix('$'));
        name.is_some_and(|name| name.starts_with(PREFIX))
    }

    /// Returns `text` with its variables replaced, as `os.Expand` of Go does. `$$` is a literal `$`,
    /// and an unknown variable is empty.
    pub(super) fn substitute(&self, text: &str) -> Result<String, String> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            out.push_str(before);
            let (name, length) = shell_name(after);
            match (name, length) {
                ("", 0) | ("$", _) => out.push('$'),
                _ => out.push_str(self.value(name)?),
            }
            rest = &after[length..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn value(&self, name: &str) -> Result<&str, String> {
        Ok(match name {
            "ARGOCD_APP_NAME" => self.name,
            "ARGOCD_APP_NAMESPACE" => self.namespace,
            "ARGOCD_APP_PROJECT_NAME" => self.project,
            "ARGOCD_APP_SOURCE_PATH" => self.source_path,
            "ARGOCD_APP_SOURCE_REPO_URL" => self.source_url,
            "ARGOCD_APP_SOURCE_TARGET_REVISION" => self.source_revision,
            name if name.starts_with("ARGOCD_APP_REVISION") => {
                return Err(format!("it uses ${name}, the commit of a sync, which is unknown"));
            }
            _ => "",
        })
    }
}

/// Returns the name of the variable at the start of `text`, after its `$`, and the length of all
/// that it takes. A name of two braces with nothing between them is empty.
fn shell_name(text: &str) -> (&str, usize) {
    if let Some(inner) = text.strip_prefix('{') {
        return match inner.find('}') {
            Some(end) => (&inner[..end], end + 2),
            None => ("", 1),
        };
    }
    let is_special = |c: char| "*#$@!?-".contains(c) || c.is_ascii_digit();
    if text.starts_with(is_special) {
        return (&text[..1], 1);
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    (&text[..end], end)
}

impl DeliveryContext<'_> {
    /// Returns the source as JSON, with the overrides of the files `.argocd-source.yaml` and
    /// `.argocd-source-NAME.yaml` in its directory; `None` without such a file.
    pub(super) fn overridden_source(
        &self,
        source: &YamlNode<'_>,
        path: &str,
        name: &str,
    ) -> Result<Option<String>, String> {
        let mut merged = None;
        for file in [".argocd-source.yaml".to_owned(), format!(".argocd-source-{name}.yaml")] {
            let Some(patch) = self.override_at(&join_path(path, &file))? else { continue };
            json_patch::merge(merged.get_or_insert_with(|| to_json(source)), &patch);
        }
        Ok(merged.map(|merged| merged.to_string()))
    }

    /// Reads the overrides in `file`; `None` if it does not exist.
    fn override_at(&self, file: &str) -> Result<Option<Json>, String> {
        let at = self.tree.files.binary_search_by(|known| (*known.path).cmp(file));
        let Some(found) = at.ok().and_then(|at| self.tree.files.get(at)) else { return Ok(None) };
        let unreadable = || format!("its file {file} cannot be read");
        let bytes = found.content.as_ref().map_err(|_| unreadable())?;
        let text = yaml::decode(bytes).map_err(|_| unreadable())?;
        let loaded = yaml::load(&text);
        let document = loaded.documents.first().filter(|_| loaded.fault.is_none());
        let mut patch = to_json(&document.ok_or_else(unreadable)?.root);
        let Some(entries) = patch.as_object_mut() else { return Err(unreadable()) };
        entries.retain(|key, _| !FIXED_KEYS.contains(&key.as_str()));
        Ok(Some(patch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_as_argo_cd_does() {
        let environment = BuildEnvironment {
            name: "web",
            namespace: "prod",
            project: "shop",
            source_path: "charts/web",
            source_url: "https://example.com/x.git",
            source_revision: "main",
        };
        for (text, expected) in [
            ("plain", "plain"),
            ("values-$ARGOCD_APP_NAME.yaml", "values-web.yaml"),
            ("${ARGOCD_APP_NAMESPACE}-$ARGOCD_APP_PROJECT_NAME", "prod-shop"),
            ("$ARGOCD_APP_SOURCE_PATH@$ARGOCD_APP_SOURCE_TARGET_REVISION", "charts/web@main"),
            ("$ARGOCD_APP_SOURCE_REPO_URL", "https://example.com/x.git"),
            ("a$$b$", "a$b$"),
            ("$other/x", "/x"),
            ("$/x ${}y ${z", "$/x y z"),
            ("$1é", "é"),
        ] {
            assert_eq!(environment.substitute(text).as_deref(), Ok(expected), "{text}");
        }
        assert!(environment.substitute("$ARGOCD_APP_REVISION_SHORT").is_err());
    }
}
