//! Converts a tree to JSON, as Kubernetes tools do.

use serde_json::{Map, Number, Value as Json};

use super::{Scalar, YamlNode, YamlValue, resolve};

/// Returns `node` as JSON. Tags are removed; numbers that JSON cannot represent become strings.
pub(in super::super) fn to_json(node: &YamlNode<'_>) -> Json {
    match &node.value {
        YamlValue::Quoted(text) => Json::from(&**text),
        YamlValue::Plain(text) => match resolve(text) {
            Scalar::Null => Json::Null,
            Scalar::Bool(value) => Json::from(value),
            Scalar::Int(int) => Json::from(int),
            Scalar::Number(number) => {
                let parsed: Option<Number> = number.replace('_', "").parse().ok();
                parsed.map_or_else(|| Json::from(number), Json::Number)
            }
            Scalar::Text(text) => Json::from(text),
        },
        YamlValue::Seq(items) => items.iter().map(to_json).collect(),
        YamlValue::Map(entries) => {
            let pair =
                |entry: &super::YamlEntry<'_>| (entry.key.to_string(), to_json(&entry.value));
            Json::Object(entries.iter().map(pair).collect::<Map<_, _>>())
        }
        YamlValue::Tagged(_, node) => to_json(node),
    }
}

/// Returns the only document of a text as JSON, or `None` if the text is not one YAML document.
pub(crate) fn yaml_to_json(text: &str) -> Option<Json> {
    let stream = super::load(text);
    match &stream.documents[..] {
        [document] if stream.fault.is_none() => Some(to_json(&document.root)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::load;
    use super::*;

    #[test]
    fn yaml_becomes_the_json_that_kubernetes_tools_make_of_it() {
        for (yaml, json) in [
            (
                "{a: 1, b: yes, c: '1', d: [x, ~, 1.5]}",
                r#"{"a":1,"b":true,"c":"1","d":["x",null,1.5]}"#,
            ),
            ("!tag {a: 010}", r#"{"a":8}"#),
            ("a: |\n  x\n  y\n", r#"{"a":"x\ny\n"}"#),
        ] {
            let loaded = load(yaml);
            assert_eq!(to_json(&loaded.documents[0].root).to_string(), json, "{yaml}");
            assert_eq!(yaml_to_json(yaml).expect("one document").to_string(), json);
        }
        for text in ["", "a: 1\n---\nb: 2\n", "{"] {
            assert_eq!(yaml_to_json(text), None, "{text}");
        }
    }
}
