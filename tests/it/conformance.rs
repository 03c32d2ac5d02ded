//! The rules of Karpenter and other autoscalers, each with a small repository, an observation and
//! the expected plan.
//!
//! `conformance/*.md` is the specification, written for readers. A section is one rule. Its title
//! states the rule, and the line below names its source in two numbered lists of behaviors. Prose
//! states the reason for an intended difference. Each fenced block marked `case` is an example of
//! the rule. The table of `not_covered.md` lists rules that planning does not decide. Every number of
//! both lists occurs in exactly one of the two places.
//!
//! The first lines of a case are its inputs:
//!
//! ```text
//! zones NAME…                     zones of the cluster (default: us-east-1a, b and c)
//! types NAME…                     available instance types (default: some common families)
//! pool NAME KEY=VALUE…            a NodePool; indented lines are its requirements
//! pods NAME COUNT KEY=VALUE…      a Deployment; indented lines are parts of the pod's `spec`
//! daemon NAME KEY=VALUE…          a DaemonSet
//! node NAME TYPE ZONE KEY=VALUE…  a running node
//! reservation ID TYPE ZONE COUNT  a capacity reservation with COUNT available instances
//! insufficient-capacity TYPE ZONE CAPACITY
//!                                 an offering without capacity; `*` means any
//! attaches NODE COUNT             attach limit for EBS volumes that the node reports
//! group NAME desired=N min=N …    an Auto Scaling group with eksctl's tags
//! manage NAME…                    node groups that the settings enable fleetwright to manage
//! manifest                        any manifest, indented
//! at TIME                         time of the plan
//! lead MINUTES                    lead time of scheduled capacity (default: 10)
//! spot PERCENT                    spot price of all types, in percent of the on-demand price
//! scheduler                       `spec.scheduler` of the settings, indented
//! mode floor|live|ceiling         demand mode: the planned count of autoscaled workloads
//! runs NAME COUNT                 live replicas of a workload
//! hpa NAME CURRENT METRIC=VALUE…  last status of an HPA: `50%` of the request, or a value a pod
//! recommends NAME CONTAINER cpu=… last recommendation of a vertical autoscaler
//! queue NAME JOBS                 number of jobs that a ScaledJob needs
//! apply                           apply the plan to the observation, with every pod on its node
//! ```
//!
//! By default, a pool launches on-demand instances and consolidates immediately. Keys of pools:
//! `types`, `zones`, `capacity` (`any`: no requirement), `weight`, `limits`, `labels`,
//! `annotations`, `taints`, `startup-taints`, `replicas`, `policy`, `after`, `class`. Keys of pods:
//! `kind`, `namespace`, `labels`, `priority`, and resource names; pods have the label `app: NAME`.
//! Keys of nodes: `pool`, `capacity`, `labels`, `taints`, `annotations`, `holds` (`web:2,db:1`),
//! `granted` (`web:2`: CPU after a resize), `age` in minutes, `member` (of a group). Flags of
//! nodes: `cordoned`, `not-ready`, `joining` (no node yet), `foreign` (unmanaged),
//! `without-devices` (no devices reported yet). Below `pods` and `daemon`, a line is YAML of the pod's `spec` or one of
//! these rules. `zone`, `hostname`, `type`, `arch`, `cpu`, `family` and `capacity` are short for
//! the label keys of that name:
//!
//! ```text
//! needs KEY OPERATOR VALUES and … required node affinity; several lines are alternatives
//! prefers WEIGHT KEY OPERATOR …   preferred node affinity
//! needs field metadata.name …     required node affinity to a field of the node
//! tolerates KEY=VALUE:EFFECT      a toleration; without a value `Exists`; or `KEY Gt VALUE`
//! claims NAME CLASS               a claim for each pod of a StatefulSet
//! spread KEY pods=app=web …       topology spread; `maxSkew`, `when`, `minDomains`, `taints`,
//!                                 `affinity`, `matchLabelKeys`; `pods=all` has an empty selector
//! affinity KEY pods=app=web …     pod affinity; `namespaces`, `namespaceSelector`, …
//! anti-affinity KEY pods=… …      pod anti-affinity
//! prefers-affinity WEIGHT KEY …   preferred pod affinity; also `prefers-anti-affinity`
//! ```
//!
//! The other lines are expectations:
//!
//! ```text
//! launch COUNT TYPE KEY=VALUE…    launched nodes (complete list; `*`: any type), or `none`
//! terminate NAME…|COUNT           terminated nodes (complete list; default: none)
//! place NAME COUNT                number of placed pods
//! unschedulable NAME COUNT for …   number of unschedulable pods and the reason (default: none)
//! spread NAME COUNT… by KEY       number of pods by `node`, or by the values of a label
//! put NAME COUNT on NODE          number of pods on a node; `KEY=VALUE`: on nodes with a label
//! fargate NAME COUNT CPU MEMORY   number of pods on Fargate, and the size of each
//! evict NAME COUNT for OTHER      pods of NAME that unschedulable pods of OTHER preempt
//! displace NAME COUNT for OTHER   pods of NAME that OTHER may displace
//! resize GROUP BEFORE AFTER       desired size of a node group; `for TEXT`: the reason
//! keep NODE for TEXT              a retained node, and the reason
//! cost <= COUNT TYPE + …          cost of the fleet
//! counts NAME FLOOR LIVE CEILING  minimum, current and maximum number of pods
//! next NAME COUNT                 next count of the autoscaler, or `none`
//! requests NAME cpu=… memory=…    requests of each pod
//! decided NAME by TEXT            source of the pod count, and the reason
//! problem TEXT                    a problem of the inputs
//! advice NAME for TEXT            suggestion for the unschedulable pods of NAME
//! notes for TEXT                  a diagnostic of the plan
//! ```
//!
//! After each plan, the plan is applied to the observation and a new plan is made, which must be
//! empty.

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

/// The lists of behaviors that sections refer to, with the number of their entries.
const LISTS: [(&str, u32); 2] = [("Karpenter", 68), ("Autoscalers", 40)];

/// The page with rules of neither list.
const EXTENSIONS: &str = "extensions.md";

/// The page whose table lists rules that planning does not decide.
const NOT_COVERED: &str = "not_covered.md";

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

/// Runs a case step by step. Returns the first difference from the expectations.
fn run_case(case: &RuleCase) -> Result<(), String> {
    let mut input = CaseInput::default();
    let mut plan = None;
    let lines = lines(case.line, &case.text);
    for (index, line) in lines.iter().enumerate() {
        let at = |why: String| format!("line {}: `{}`\n{why}", line.number, line.text);
        if line.is_expectation() {
            if plan.is_none() {
                let here = lines[index..].iter().take_while(|line| line.is_expectation());
                let here: Vec<&CaseLine> = here.collect();
                let case_plan = input.plan(&here).map_err(at)?;
                let totals = expected::check_defaults(&case_plan, &here)
                    .and(expected::check_launch_total(&case_plan, &here));
                totals.map_err(|why| case_plan.with_details(&why))?;
                input.check_convergence(&case_plan).map_err(|why| case_plan.with_details(&why))?;
                plan = Some(case_plan);
            }
            let case_plan = plan.as_ref().expect("the first expectation makes the plan");
            expected::check_line(line, case_plan, &input)
                .map_err(|why| at(case_plan.with_details(&why)))?;
        } else if line.text == "apply" {
            let case_plan = plan.take().ok_or_else(|| at("nothing was planned yet".to_owned()))?;
            input.apply_plan(&case_plan);
        } else {
            plan = None;
            input.read_line(line).map_err(at)?;
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
                if let Err(why) = run_case(case) {
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
            let has_source = !section.sources.is_empty() || page.name == EXTENSIONS;
            if section.cases.is_empty() || !has_source {
                wrong.push(format!("{place}: a rule names its source and has a case"));
            }
            for source in &section.sources {
                places.entry(source.clone()).or_default().push(place.clone());
            }
        }
        for (line, source) in &page.rows {
            if page.name != NOT_COVERED {
                wrong.push(format!("{}:{line}: the table is in {NOT_COVERED}", page.name));
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
