//! Terms that select images, subnets and security groups.
//!
//! v1alpha1 selects by one map of tags, in which some keys stand for ids, names or owners. v1beta1 and
//! v1 have lists of terms. What the API server refuses is an error. Source: karpenter-provider-aws,
//! `pkg/apis/crds`; for v1alpha1 release 0.31, `pkg/utils/nodeclass` and `pkg/apis/v1alpha1`.

use std::collections::BTreeMap;

use super::super::decode::{Field, FieldMap, shorten};
use super::super::yaml::YamlValue;
use super::node_pool::string_map;
use crate::model::desired::{Ec2Selector, Generation, ImageTerm};

/// Maximum terms of a list.
const TERMS_MAX: usize = 30;

/// Maximum tags of a term.
const TAGS_MAX: usize = 20;

/// Maximum length of an alias.
const ALIAS_MAX: usize = 30;

/// Maximum selectors that a map of v1alpha1 stands for. EC2 takes as many values of one filter.
const COMBINATIONS_MAX: usize = 200;

/// Keys of a v1alpha1 selector that stand for ids.
const ID_KEYS: [&str; 2] = ["aws-ids", "aws::ids"];
/// Key of a v1alpha1 image selector that stands for names.
const NAME_KEY: &str = "aws::name";
/// Key of a v1alpha1 image selector that stands for owners.
const OWNER_KEY: &str = "aws::owners";

/// What a term selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Selected {
    Images,
    Subnets,
    SecurityGroups,
}

/// Whether one term that breaks a rule is refused, or only a list of such terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    EachTerm,
    WholeList,
}

impl Selected {
    /// Returns the field with a list of terms.
    fn list(self) -> &'static str {
        match self {
            Self::Images => "amiSelectorTerms",
            Self::Subnets => "subnetSelectorTerms",
            Self::SecurityGroups => "securityGroupSelectorTerms",
        }
    }

    /// Returns the field with the selector of v1alpha1.
    fn map(self) -> &'static str {
        match self {
            Self::Images => "amiSelector",
            Self::Subnets => "subnetSelector",
            Self::SecurityGroups => "securityGroupSelector",
        }
    }

    /// Returns the fields that select. Each term needs at least one.
    fn conditions(self) -> &'static [&'static str] {
        match self {
            Self::Images => &["alias", "tags", "id", "name", "ssmParameter"],
            Self::Subnets => &["tags", "id"],
            Self::SecurityGroups => &["tags", "id", "name"],
        }
    }

    fn id_prefix(self) -> &'static str {
        match self {
            Self::Images => "ami-",
            Self::Subnets => "subnet-",
            Self::SecurityGroups => "sg-",
        }
    }
}

/// Reads the selectors of subnets or security groups, in the form of any generation.
pub(super) fn selectors(spec: &FieldMap<'_>, selected: Selected) -> Vec<Ec2Selector> {
    let terms = spec.get(selected.list()).map(|field| {
        check_terms(&field, selected, Generation::V1);
        let read = |item: Field<'_>| {
            let map = item.map()?;
            let selector = selector(&map, selected);
            map.finish_with_typo_check();
            is_selective(&item, &map, &selector, selected).then_some(selector)
        };
        field.items().filter_map(read).collect()
    });
    let of_map = || {
        let field = spec.get(selected.map())?;
        Some(legacy_selectors(&field, selected).into_iter().map(|(selector, _)| selector).collect())
    };
    terms.or_else(of_map).unwrap_or_default()
}

/// Reads the terms of images. `alias` is the AMI alias of the class, if any.
pub(super) fn image_terms(
    spec: &FieldMap<'_>,
    alias: Option<&str>,
    generation: Generation,
) -> Vec<ImageTerm> {
    let terms = spec.get(Selected::Images.list());
    if let Some(terms) = &terms {
        check_terms(terms, Selected::Images, generation);
    }
    if let Some((family, version)) = alias.and_then(|alias| alias.split_once('@')) {
        let (family, version) = (family.to_owned(), version.to_owned());
        return vec![ImageTerm::Alias { family, version }];
    }
    if let Some(terms) = terms {
        return terms.items().filter_map(|item| image_term(&item)).collect();
    }
    let selectors = spec.get(Selected::Images.map());
    let selectors = selectors.map(|field| legacy_selectors(&field, Selected::Images));
    let term = |(selector, owner)| ImageTerm::Owned(selector, owner);
    selectors.unwrap_or_default().into_iter().map(term).collect()
}

fn image_term(item: &Field<'_>) -> Option<ImageTerm> {
    let map = &item.map()?;
    let selector = selector(map, Selected::Images);
    let (parameter, owner) = (text(map, "ssmParameter"), text(map, "owner"));
    map.ignore(&["alias"]);
    map.finish_with_typo_check();
    if let Some(parameter) = parameter {
        return Some(ImageTerm::Parameter(parameter));
    }
    is_selective(item, map, &selector, Selected::Images)
        .then_some(ImageTerm::Owned(selector, owner))
}

fn text(map: &FieldMap<'_>, key: &'static str) -> Option<String> {
    map.get(key).and_then(|field| Some(field.non_empty_text()?.into_owned()))
}

fn selector(map: &FieldMap<'_>, selected: Selected) -> Ec2Selector {
    let id = map.get("id").and_then(|field| {
        let id = field.non_empty_text()?.into_owned();
        check_id(&field, &id, selected);
        Some(id)
    });
    let name = (selected != Selected::Subnets).then(|| text(map, "name")).flatten();
    let tags = map.get("tags").map(|field| selector_tags(&field)).unwrap_or_default();
    Ec2Selector { id, name, tags }
}

fn selector_tags(field: &Field<'_>) -> BTreeMap<String, String> {
    let tags = string_map(field);
    if tags.iter().any(|(key, value)| key.is_empty() || value.is_empty()) {
        field.error("has a tag without a key or value", "write * for any value".to_owned());
    }
    if tags.len() > TAGS_MAX {
        field.error(format_args!("lists {} tags, more than {TAGS_MAX}", tags.len()), None);
    }
    tags
}

/// Reports a text that contains no id, as the pattern of the API server does.
fn check_id(field: &Field<'_>, id: &str, selected: Selected) {
    let prefix = selected.id_prefix();
    let is_id = |(at, _): (usize, &str)| {
        let rest = &id.as_bytes()[at + prefix.len()..];
        rest.first().is_some_and(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
    };
    if !field.scope.verbatim && !id.match_indices(prefix).any(is_id) {
        field.error(
            format_args!("is `{}`, not an id", shorten(id)),
            format!("write an id such as {prefix}0a1b2c3d"),
        );
    }
}

/// Returns whether a term has a condition, and reports one that has none. An unreadable condition is
/// already reported.
fn is_selective(
    item: &Field<'_>,
    map: &FieldMap<'_>,
    selector: &Ec2Selector,
    selected: Selected,
) -> bool {
    if *selector != Ec2Selector::default() {
        return true;
    }
    let states_tags = |tags: Field<'_>| tags.map().is_some_and(|m| m.entries().next().is_some());
    let mut entries = map.entries();
    if entries.all(|(key, field)| key == "tags" && !states_tags(field)) {
        item.error("selects everything", "state tags or an id".to_owned());
        return false;
    }
    let conditions = selected.conditions();
    let has_condition = conditions.iter().any(|key| map.get(key).is_some());
    // A misspelled condition is an unknown field.
    let is_spelled = map.entries().all(|(key, _)| ["owner", "name", "tags"].contains(&key));
    if !has_condition && is_spelled {
        let hint = format!("state one of {}", conditions.join(", "));
        item.error("has no condition", hint);
    }
    false
}

/// Reports what the API server refuses about the fields of the terms of a list.
fn check_terms(terms: &Field<'_>, selected: Selected, generation: Generation) {
    if terms.scope.verbatim {
        return;
    }
    let maps: Vec<FieldMap<'_>> = {
        let is_map = |item: &Field<'_>| matches!(item.node.value, YamlValue::Map(_));
        let items = terms.items().filter(is_map);
        items.filter_map(|item| item.map()).collect()
    };
    if maps.len() > TERMS_MAX {
        terms.error(format_args!("lists {} terms, more than {TERMS_MAX}", maps.len()), None);
    }
    match selected {
        Selected::Images => {
            let refused =
                if generation == Generation::V1 { Refused::EachTerm } else { Refused::WholeList };
            check_exclusive(terms, &maps, "alias", &["tags", "name", "owner"], Refused::EachTerm);
            check_exclusive(terms, &maps, "id", &["alias", "tags", "name", "owner"], refused);
        }
        // The rules of these lists hold unless every term breaks them.
        Selected::Subnets => check_exclusive(terms, &maps, "id", &["tags"], Refused::WholeList),
        Selected::SecurityGroups => {
            check_exclusive(terms, &maps, "id", &["tags", "name"], Refused::WholeList);
            check_exclusive(terms, &maps, "name", &["tags"], Refused::WholeList);
        }
    }
    for alias in maps.iter().filter_map(|map| map.get("alias")) {
        if alias.node.text().is_some_and(|text| text.chars().count() > ALIAS_MAX) {
            alias.error(format_args!("has more than {ALIAS_MAX} characters"), None);
        }
    }
}

/// Reports terms with `field` beside one of `others`.
fn check_exclusive(
    terms: &Field<'_>,
    maps: &[FieldMap<'_>],
    field: &'static str,
    others: &[&'static str],
    refused: Refused,
) {
    let other = |map: &FieldMap<'_>| {
        map.get(field)?;
        others.iter().copied().find(|other| map.get(other).is_some())
    };
    let conflicts: Vec<(&FieldMap<'_>, &str)> =
        maps.iter().filter_map(|map| Some((map, other(map)?))).collect();
    let counts = match refused {
        Refused::EachTerm => true,
        Refused::WholeList => conflicts.len() == terms.items().count(),
    };
    for (map, other) in conflicts.into_iter().filter(|_| counts) {
        let hint = format!("keep one of them: `{field}` excludes other conditions");
        map.field.error(format_args!("has both `{field}` and `{other}`"), hint);
    }
}

/// Reads a v1alpha1 selector, and returns a selector and an owner for each combination of its
/// comma-separated values.
fn legacy_selectors(field: &Field<'_>, selected: Selected) -> Vec<(Ec2Selector, Option<String>)> {
    let mut tags = string_map(field);
    if tags.iter().any(|(key, value)| key.is_empty() || value.is_empty()) {
        field.error("has a tag without a key or value", "write * for any value".to_owned());
        return Vec::new();
    }
    let entries = tags.len();
    let ids = ID_KEYS.iter().find_map(|key| tags.remove(*key));
    if let Some(ids) = ids {
        if entries > 1 {
            field.error("has ids beside other conditions", "keep the ids alone".to_owned());
        }
        let ids = listed(&ids);
        for id in &ids {
            check_id(field, id, selected);
        }
        let by_id = |id| (Ec2Selector { id: Some(id), ..Ec2Selector::default() }, None);
        return ids.into_iter().map(by_id).collect();
    }
    let mut of_image = |key: &str| {
        let is_image = selected == Selected::Images;
        let values = is_image.then(|| tags.remove(key)).flatten();
        values.map(|values| listed(&values)).filter(|values| !values.is_empty())
    };
    let (names, owners) = (of_image(NAME_KEY), of_image(OWNER_KEY));
    let lists: Vec<(String, Vec<String>)> =
        tags.into_iter().map(|(key, values)| (key, listed(&values))).collect();
    let counts = lists.iter().map(|(_, values)| values).chain(&names).chain(&owners);
    let combinations = counts.fold(1_usize, |product, values| product.saturating_mul(values.len()));
    if combinations > COMBINATIONS_MAX {
        field.error(
            format_args!("stands for more than {COMBINATIONS_MAX} combinations of values"),
            "list fewer values".to_owned(),
        );
        return Vec::new();
    }
    let mut selectors = vec![Ec2Selector::default()];
    for (key, values) in &lists {
        selectors = combined(&selectors, values, |selector, value| {
            drop(selector.tags.insert(key.clone(), value));
        });
    }
    if let Some(names) = &names {
        selectors = combined(&selectors, names, |selector, name| selector.name = Some(name));
    }
    let Some(owners) = owners else {
        selectors.retain(|selector| *selector != Ec2Selector::default());
        return selectors.into_iter().map(|selector| (selector, None)).collect();
    };
    let owned = |selector: &Ec2Selector| {
        let selector = selector.clone();
        owners.iter().map(move |owner| (selector.clone(), Some(owner.clone())))
    };
    selectors.iter().flat_map(owned).collect()
}

/// Returns each selector with each of the values.
fn combined(
    selectors: &[Ec2Selector],
    values: &[String],
    set: impl Fn(&mut Ec2Selector, String),
) -> Vec<Ec2Selector> {
    let with = |selector: &Ec2Selector, value: &String| {
        let mut selector = selector.clone();
        set(&mut selector, value.clone());
        selector
    };
    let with_each = |selector| values.iter().map(move |value| (selector, value));
    let pairs = selectors.iter().flat_map(with_each);
    pairs.map(|(selector, value)| with(selector, value)).collect()
}

fn listed(values: &str) -> Vec<String> {
    values.split(',').map(str::trim).filter(|t| !t.is_empty()).map(str::to_owned).collect()
}
