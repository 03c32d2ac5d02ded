//! The rules of Karpenter and of its neighbours, each with a small tree, a world, and what is
//! planned.
//!
//! `conformance/*.md` are the specification; they are meant to be read. A section is one rule: its
//! title says it, the line below names where the rule comes from (the numbered lists of behaviours
//! that the project was begun with), prose says where our answer differs on purpose and why. Each
//! fenced block marked `case` is one example of the rule. Rules that planning does not decide, or
//! does not decide yet, stand in the table of `elsewhere.md`; every number of both lists stands in
//! exactly one of the two places.
//!
//! The lines of a case, first what is given:
//!
//! ```text
//! zones NAME…                     the zones of the cluster (default: us-east-1a, b and c)
//! types NAME…                     the instance types there are (default: some common families)
//! pool NAME KEY=VALUE…            a NodePool; indented below it its requirements, one a line
//! pods NAME COUNT KEY=VALUE…      a Deployment; indented below it more of the pod's `spec`
//! daemon NAME KEY=VALUE…          a DaemonSet
//! node NAME TYPE ZONE KEY=VALUE…  a node that runs
//! reservation ID TYPE ZONE COUNT  a capacity reservation with so many instances left
//! sold-out TYPE ZONE CAPACITY     what EC2 lately had none of; `*` means any
//! attaches NODE COUNT             how many EBS volumes the node says that it attaches
//! group NAME desired=N min=N …    an Auto Scaling group with eksctl's tags
//! manage NAME…                    node groups that the settings hand over
//! manifest                        indented below it any manifest
//! at TIME                         when it is planned
//! lead MINUTES                    how long before it is needed capacity is to be there (10)
//! mode floor|live|ceiling         which count of autoscaled workloads is planned for
//! runs NAME COUNT                 the workload is set to so many pods
//! hpa NAME CURRENT METRIC=VALUE…  what an HPA last saw: `50%` of the request, or so much a pod
//! recommends NAME CONTAINER cpu=… what a vertical autoscaler last recommended
//! queue NAME JOBS                 how many jobs a ScaledJob is asked for
//! carry out                       make the world what was planned, with every pod where it goes
//! ```
//!
//! A pool sells on demand and consolidates at once unless it says otherwise: `types`, `zones`,
//! `capacity` (`any`: not said), `weight`, `limits`, `labels`, `taints`, `startup-taints`,
//! `replicas`, `policy`, `after`, `class`. Pods: `kind`, `namespace`, `labels`, `priority`, and
//! amounts of resources; they carry `app: NAME`. Nodes: `pool`, `capacity`, `labels`, `taints`,
//! `annotations`, `holds` (`web:2,db:1`), `granted` (`web:2`: CPU after a resize), `age` in minutes,
//! `member` (of a group),
//! and the words `cordoned`, `not-ready`, `joining` (no node yet), `foreign` (not ours),
//! `without-devices` (none reported yet). Below `pods` and `daemon` a line is YAML of the
//! pod's `spec`, or one of these rules (`zone`, `hostname`, `type`, `arch`, `cpu`, `family` and
//! `capacity` stand for the label keys of that name):
//!
//! ```text
//! needs KEY OPERATOR VALUES and … required node affinity; several lines are alternatives
//! prefers WEIGHT KEY OPERATOR …   preferred node affinity
//! needs field metadata.name …     the same about a field of the node
//! tolerates KEY=VALUE:EFFECT      a toleration; without a value `Exists`; or `KEY Gt VALUE`
//! claims NAME CLASS               a claim for each pod of a StatefulSet
//! spread KEY pods=app=web …       topology spread; `maxSkew`, `when`, `minDomains`, `taints`,
//!                                 `affinity`, `matchLabelKeys`; `pods=all` has an empty selector
//! near KEY pods=app=web …         pod affinity; `namespaces`, `namespaceSelector`, …
//! apart KEY pods=app=web …        pod anti-affinity
//! prefers-near WEIGHT KEY …       the same as wishes; `prefers-apart`
//! ```
//!
//! Then what is planned:
//!
//! ```text
//! launch COUNT TYPE KEY=VALUE…    these nodes and no others (`*`: of any type); or `launch none`
//! terminate NAME…|COUNT           these nodes go and no others; where it is not said, none goes
//! place NAME COUNT                so many pods have a place
//! leave NAME COUNT for TEXT       so many have none, and why; where it is not said, none is left
//! spread NAME COUNT… by KEY       pods by `node`, or by the values of a label
//! put NAME COUNT on NODE|KEY=VALUE
//! fargate NAME COUNT CPU MEMORY   so many need no node, each an instance of so much
//! evict NAME COUNT for OTHER      pods of NAME that OTHER, without a place, has evicted
//! displace NAME COUNT for OTHER   pods of NAME whose room OTHER may take
//! resize GROUP BEFORE AFTER       the desired size of a node group; `for TEXT`: why
//! keep NODE for TEXT              the node stays, and why
//! cost <= COUNT TYPE + …          what the fleet costs
//! counts NAME FLOOR LIVE CEILING  how many pods there may be, are, and may be at most
//! next NAME COUNT                 the count that its autoscaler goes to next, or `none`
//! asks NAME cpu=… memory=…        what each of its pods asks for
//! decided NAME by TEXT            who decides how many there are, and why
//! problem TEXT                    what is said about the inputs
//! ```
//!
//! After each plan the world is made what it says, and planned again: nothing may be left to do.

mod autoscaler_state;
mod case_input;
mod case_line;
mod expected;
mod pod_counts;
mod pod_rules;
mod rule_page;
mod world;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

pub(crate) use case_input::CaseInput;
pub(crate) use case_line::lines;
pub(crate) use expected::CasePlan;
pub(crate) use rule_page::RulePage;
pub(crate) use world::resources;

use case_line::CaseLine;
use rule_page::{RuleCase, RuleSource};

/// The lists that sections name, with the number of their entries.
const LISTS: [(&str, u32); 2] = [("Karpenter", 68), ("Autoscalers", 40)];

/// The page of rules that neither list has.
const BEYOND: &str = "beyond.md";

/// The page whose table lists what is not planned here.
const ELSEWHERE: &str = "elsewhere.md";

fn pages() -> Vec<RulePage> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/conformance");
    let entries = fs::read_dir(directory).expect("the directory is listed");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("listed").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "md"));
    paths.sort();
    let page = |path: &std::path::PathBuf| {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        RulePage::read(&name, &fs::read_to_string(path).expect("the page is readable"))
    };
    paths.iter().map(page).collect()
}

/// Plays a case step by step; returns the first thing that is not as expected.
fn play(case: &RuleCase) -> Result<(), String> {
    let mut given = CaseInput::default();
    let mut plan = None;
    let lines = lines(case.line, &case.text);
    for (index, line) in lines.iter().enumerate() {
        let at = |why: String| format!("line {}: `{}`\n{why}", line.number, line.text);
        if line.is_expectation() {
            if plan.is_none() {
                let here = lines[index..].iter().take_while(|line| line.is_expectation());
                let here: Vec<&CaseLine> = here.collect();
                let made = given.plan(&here).map_err(at)?;
                let totals =
                    expected::defaults(&made, &here).and(expected::launch_total(&made, &here));
                totals.map_err(|why| made.with_story(&why))?;
                given.settles(&made).map_err(|why| made.with_story(&why))?;
                plan = Some(made);
            }
            let made = plan.as_ref().expect("made when the first expectation came");
            expected::holds(line, made, &given).map_err(|why| at(made.with_story(&why)))?;
        } else if line.text == "carry out" {
            let made = plan.take().ok_or_else(|| at("nothing was planned yet".to_owned()))?;
            given.carry_out(&made);
        } else {
            plan = None;
            given.take(line).map_err(at)?;
        }
    }
    if plan.is_some() { Ok(()) } else { Err("the case expects nothing".to_owned()) }
}

#[test]
fn conformance_cases_hold() {
    let mut failed = Vec::new();
    for page in pages() {
        for section in &page.sections {
            for case in &section.cases {
                if let Err(why) = play(case) {
                    let RulePage { name, .. } = &page;
                    failed.push(format!("{name}:{}: {}\n{why}", case.line, section.title));
                }
            }
        }
    }
    let count = failed.len();
    assert!(failed.is_empty(), "{count} cases do not hold\n\n{}", failed.join("\n\n"));
}

#[test]
fn each_listed_rule_has_one_section() {
    let mut places: BTreeMap<RuleSource, Vec<String>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for page in pages() {
        for section in &page.sections {
            let place = format!("{}:{}", page.name, section.line);
            let has_source = !section.sources.is_empty() || page.name == BEYOND;
            if section.cases.is_empty() || !has_source {
                wrong.push(format!("{place}: a rule names its source and has a case"));
            }
            for source in &section.sources {
                places.entry(source.clone()).or_default().push(place.clone());
            }
        }
        for (line, source) in &page.rows {
            if page.name != ELSEWHERE {
                wrong.push(format!("{}:{line}: the table is in {ELSEWHERE}", page.name));
            }
            places.entry(source.clone()).or_default().push(format!("{}:{line}", page.name));
        }
    }
    for (list, count) in LISTS {
        for number in 1..=count {
            let source = RuleSource { list: list.to_owned(), number };
            match places.remove(&source).unwrap_or_default().as_slice() {
                [_] => {}
                found => wrong.push(format!("{list} {number} stands in {found:?}")),
            }
        }
    }
    wrong.extend(places.keys().map(|source| format!("{source:?} is in no list")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
