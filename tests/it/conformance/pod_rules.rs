//! Converts one-line rules of pods to YAML.

use super::case_line::{CaseLine, pairs};

/// Label keys with their short names.
const KEYS: [(&str, &str); 7] = [
    ("arch", "kubernetes.io/arch"),
    ("capacity", "karpenter.sh/capacity-type"),
    ("cpu", "karpenter.k8s.aws/instance-cpu"),
    ("family", "karpenter.k8s.aws/instance-family"),
    ("hostname", "kubernetes.io/hostname"),
    ("type", "node.kubernetes.io/instance-type"),
    ("zone", "topology.kubernetes.io/zone"),
];

/// Returns the label key of a short name.
pub(super) fn key(name: &str) -> &str {
    KEYS.iter().find(|(short, _)| *short == name).map_or(name, |(_, key)| key)
}

/// Converts `a=x,b=y` to a YAML mapping.
pub(super) fn mapping(text: &str) -> String {
    let pair = |(name, value): (&str, &str)| format!("{name:?}: {value:?}");
    format!("{{ {} }}", pairs(text, '=').into_iter().map(pair).collect::<Vec<_>>().join(", "))
}

/// Converts `a,b` to a YAML list.
pub(super) fn list(text: &str) -> String {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    format!("[{}]", items.map(|item| format!("{item:?}")).collect::<Vec<_>>().join(", "))
}

/// Converts `KEY OPERATOR VALUES` to the contents of a YAML mapping.
pub(super) fn expression(text: &str) -> Result<String, String> {
    let mut words = text.trim().splitn(3, ' ');
    let (name, operator) =
        words.next().zip(words.next()).ok_or(format!("`{text}` is not KEY OPERATOR VALUES"))?;
    let values = words.next().map(|values| format!(", values: {}", list(values)));
    Ok(format!("key: {:?}, operator: {operator}{}", key(name), values.unwrap_or_default()))
}

/// Rules of one pod in YAML, by field.
#[derive(Default)]
struct Rules {
    needs: Vec<String>,
    prefers: Vec<String>,
    spread: Vec<String>,
    tolerates: Vec<String>,
    /// Required and preferred terms of affinity, followed by those of anti-affinity.
    terms: [[Vec<String>; 2]; 2],
}

/// Converts the lines of `body` to lines of a pod's `spec`.
pub(super) fn spec(body: &[String]) -> Result<Vec<String>, String> {
    let mut rules = Rules::default();
    let mut yaml = Vec::new();
    for text in body {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match word {
            "needs" => rules.needs.push(term(rest)?),
            "prefers" => {
                let (weight, rest) = rest.split_once(' ').ok_or("write prefers WEIGHT …")?;
                rules.prefers.push(format!("{{ weight: {weight}, preference: {} }}", term(rest)?));
            }
            "spread" => rules.spread.push(spread(&CaseLine::read(0, rest))?),
            "tolerates" => rules.tolerates.push(toleration(rest)),
            "affinity" => rules.terms[0][0].push(pods(&CaseLine::read(0, rest))?),
            "anti-affinity" => rules.terms[1][0].push(pods(&CaseLine::read(0, rest))?),
            "prefers-affinity" => rules.terms[0][1].push(weighted(&CaseLine::read(0, rest))?),
            "prefers-anti-affinity" => rules.terms[1][1].push(weighted(&CaseLine::read(0, rest))?),
            _ => yaml.push(text.clone()),
        }
    }
    yaml.extend(rules.lines());
    Ok(yaml)
}

impl Rules {
    fn lines(self) -> impl Iterator<Item = String> {
        let Self { needs, prefers, spread, tolerates, terms: [affinity, anti_affinity] } = self;
        let joined = |list: &[String]| format!("[{}]", list.join(", "));
        let mut node = Vec::new();
        if !needs.is_empty() {
            let terms = joined(&needs);
            node.push(format!("{REQUIRED}: {{ nodeSelectorTerms: {terms} }}"));
        }
        if !prefers.is_empty() {
            node.push(format!("{PREFERRED}: {}", joined(&prefers)));
        }
        let of_pods = |[required, preferred]: [Vec<String>; 2]| {
            let both = [(REQUIRED, required), (PREFERRED, preferred)];
            let both = both.into_iter().filter(|(_, list)| !list.is_empty());
            both.map(|(name, list)| format!("{name}: {}", joined(&list))).collect::<Vec<_>>()
        };
        let all = [("node", node), ("pod", of_pods(affinity)), ("podAnti", of_pods(anti_affinity))]
            .map(|(name, parts)| {
                (!parts.is_empty()).then(|| format!("{name}Affinity: {{ {} }}", parts.join(", ")))
            });
        let all: Vec<String> = all.into_iter().flatten().collect();
        let lines = [
            (!all.is_empty()).then(|| format!("affinity: {{ {} }}", all.join(", "))),
            (!spread.is_empty()).then(|| format!("topologySpreadConstraints: {}", joined(&spread))),
            (!tolerates.is_empty()).then(|| format!("tolerations: {}", joined(&tolerates))),
        ];
        lines.into_iter().flatten()
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Converts `KEY OPERATOR VALUES and …` to a node selector term. An expression with prefix `field`
/// selects by a field of the node.
fn term(text: &str) -> Result<String, String> {
    let is_field = |one: &&str| one.starts_with("field ");
    let (fields, labels): (Vec<&str>, Vec<&str>) = text.split(" and ").partition(is_field);
    let list = |name: &str, all: Vec<&str>| -> Result<Option<String>, String> {
        let one = |text: &str| {
            Ok(format!("{{ {} }}", expression(text.strip_prefix("field ").unwrap_or(text))?))
        };
        let all: Result<Vec<String>, String> = all.into_iter().map(one).collect();
        Ok(Some(all?)
            .filter(|all| !all.is_empty())
            .map(|all| format!("{name}: [{}]", all.join(", "))))
    };
    let parts = [list("matchExpressions", labels)?, list("matchFields", fields)?];
    Ok(format!("{{ {} }}", parts.into_iter().flatten().collect::<Vec<_>>().join(", ")))
}

/// Converts `a=x` to a label selector. `all` selects every pod.
fn selector(text: &str) -> String {
    if text == "all" { "{}".to_owned() } else { format!("{{ matchLabels: {} }}", mapping(text)) }
}

fn spread(line: &CaseLine) -> Result<String, String> {
    line.only(&["maxSkew", "when", "minDomains", "pods", "taints", "affinity", "matchLabelKeys"])?;
    let mut parts = vec![
        format!("topologyKey: {}", key(line.word(0)?)),
        format!("maxSkew: {}", line.option("maxSkew").unwrap_or("1")),
        format!("whenUnsatisfiable: {}", line.option("when").unwrap_or("DoNotSchedule")),
    ];
    if let Some(pods) = line.option("pods").filter(|pods| *pods != "none") {
        parts.push(format!("labelSelector: {}", selector(pods)));
    }
    for (option, name) in [
        ("minDomains", "minDomains"),
        ("taints", "nodeTaintsPolicy"),
        ("affinity", "nodeAffinityPolicy"),
    ] {
        parts.extend(line.option(option).map(|value| format!("{name}: {value}")));
    }
    parts.extend(
        line.option("matchLabelKeys").map(|keys| format!("matchLabelKeys: {}", list(keys))),
    );
    Ok(format!("{{ {} }}", parts.join(", ")))
}

fn pods(line: &CaseLine) -> Result<String, String> {
    line.only(&["pods", "namespaces", "namespaceSelector", "matchLabelKeys", "mismatchLabelKeys"])?;
    let mut parts = vec![format!("topologyKey: {}", key(line.word(0)?))];
    parts.extend(line.option("pods").map(|pods| format!("labelSelector: {}", selector(pods))));
    let namespaces = line.option("namespaceSelector");
    parts.extend(namespaces.map(|labels| format!("namespaceSelector: {}", selector(labels))));
    for name in ["namespaces", "matchLabelKeys", "mismatchLabelKeys"] {
        parts.extend(line.option(name).map(|values| format!("{name}: {}", list(values))));
    }
    Ok(format!("{{ {} }}", parts.join(", ")))
}

fn weighted(line: &CaseLine) -> Result<String, String> {
    let weight = line.word(0)?.to_owned();
    let rest = line.text.split_once(' ').map(|(_, rest)| rest).unwrap_or_default();
    Ok(format!("{{ weight: {weight}, podAffinityTerm: {} }}", pods(&CaseLine::read(0, rest))?))
}

/// Converts `KEY`, `KEY=VALUE`, `KEY:EFFECT` or `KEY Gt VALUE` to a toleration.
fn toleration(text: &str) -> String {
    let (pair, effect) = text.split_once(':').map_or((text, None), |(p, e)| (p, Some(e)));
    let effect = effect.map(|effect| format!(", effect: {effect}")).unwrap_or_default();
    if let [key, operator, value] = pair.split(' ').collect::<Vec<_>>().as_slice() {
        return format!("{{ key: {key:?}, operator: {operator}, value: {value:?}{effect} }}");
    }
    match pair.split_once('=') {
        Some((key, value)) => format!("{{ key: {key:?}, value: {value:?}{effect} }}"),
        None => format!("{{ key: {pair:?}, operator: Exists{effect} }}"),
    }
}
