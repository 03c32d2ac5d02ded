//! First line, last line and exit code of `plan`, `show`, `apply` and `validate`: each row of the
//! table in `docs/src/reference/exit-codes.md` is run.

use std::fs;
use std::path::Path;

use crate::binary::{CommandResult, Workspace};

const PAGE: &str = "docs/src/reference/exit-codes.md";
const HEAD: &str =
    "| command | inputs | pods | node changes | first line | last line | exit code |";

const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: shop }
spec:
  cluster: { name: shop, region: us-east-1, zones: [us-east-1a] }
";

const POOL: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: web }
spec:
  template:
    spec:
      requirements:
      - { key: kubernetes.io/arch, operator: In, values: [amd64] }
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: web }
spec:
  role: web
  amiSelectorTerms: [{ alias: al2023@latest }]
  subnetSelectorTerms: [{ tags: { x: z } }]
  securityGroupSelectorTerms: [{ tags: { x: z } }]
";

/// Returns a Deployment of one pod.
fn workload(name: &str, memory: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: {name}, namespace: web }}\nspec:\n  \
         replicas: 1\n  selector: {{ matchLabels: {{ app: {name} }} }}\n  template:\n    \
         metadata: {{ labels: {{ app: {name} }} }}\n    spec:\n      containers:\n      \
         - {{ name: app, image: app, resources: {{ requests: {{ cpu: 100m, memory: {memory} }} }} }}\n"
    )
}

/// A row of the table.
struct Row<'a> {
    command: &'a str,
    inputs: &'a str,
    pods: &'a str,
    changes: &'a str,
    first: &'a str,
    last: &'a str,
    code: i32,
}

impl<'a> Row<'a> {
    fn parse(line: &'a str) -> Self {
        let cells: Vec<&str> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [command, inputs, pods, changes, first, last, code] = cells.as_slice() else {
            panic!("seven cells: {line}");
        };
        let code = code.parse().expect("an exit code");
        Self { command, inputs, pods, changes, first, last, code }
    }

    /// Returns the tree of the row, and a world with or without the nodes that it needs.
    fn workspace(&self) -> Workspace {
        let workspace = Workspace::empty();
        workspace.write("fleetwright.yaml", FLEET);
        workspace.write("apps/api.yaml", &workload("api", "1Gi"));
        workspace.write("pools/web.yaml", POOL);
        if self.pods == "unschedulable" {
            workspace.write("apps/big.yaml", &workload("big", "900Gi"));
        }
        if self.changes == "none" {
            let applied = workspace.run(&["apply", ".", "--world", "sim:world", "--auto-approve"]);
            assert_eq!(applied.code, Some(0), "{}{}", applied.out, applied.err);
        }
        match self.inputs {
            "complete" => {}
            "incomplete" => {
                workspace.write("charts/shop/Chart.yaml", "apiVersion: v2\nname: shop\n");
            }
            "error" => workspace.write("apps/api.yaml", &workload("api", "1G1")),
            "pool that launches no node" => {
                workspace.write("pools/web.yaml", &POOL.replace("[amd64]", "[x86_64]"));
            }
            "source that is not rendered" => {
                let sources = "  sources: [{ path: apps }, { path: pools }, \
                               { path: charts/shop, render: helm }]\n";
                workspace.write("fleetwright.yaml", &format!("{FLEET}{sources}"));
                workspace.write("charts/shop/Chart.yaml", "apiVersion: v2\nname: shop\n");
            }
            other => panic!("unknown inputs: {other}"),
        }
        workspace
    }

    fn run(&self, workspace: &Workspace) -> CommandResult {
        let world = ["--world", "sim:world"];
        let plan = ["plan", ".", world[0], world[1]];
        match self.command {
            "plan" => workspace.run(&plan),
            "plan --detailed-exitcode" => {
                workspace.run(&[&plan[..], &["--detailed-exitcode"]].concat())
            }
            "show" => {
                workspace.run(&[&plan[..], &["--out", "p.json"]].concat());
                workspace.run(&["show", "p.json"])
            }
            "apply" => workspace.run(&["apply", ".", world[0], world[1], "--auto-approve"]),
            "validate" => workspace.run(&["validate", "."]),
            other => panic!("unknown command: {other}"),
        }
    }
}

/// Returns whether a line is that of a cell, in which `…` stands for the rest of the line.
fn is_line(cell: &str, line: &str) -> bool {
    cell.strip_suffix('…').map_or(line == cell, |start| line.starts_with(start))
}

#[test]
fn each_row_of_the_outcome_table_holds() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = fs::read_to_string(page).expect("readable");
    let (_, table) = page.split_once(HEAD).expect("the table");
    let lines = table.trim_start().lines().skip(1).take_while(|line| line.starts_with('|'));
    let rows: Vec<Row<'_>> = lines.map(Row::parse).collect();
    for command in ["plan --detailed-exitcode", "show", "apply"] {
        let count = rows.iter().filter(|row| row.command == command && row.inputs != "error");
        assert_eq!(count.count(), 8, "every combination of {command}");
    }
    for row in &rows {
        let Row { command, inputs, pods, changes, first, last, code } = row;
        let CommandResult { code: exit, out, err } = row.run(&row.workspace());
        let case = format!("{command}, {inputs}, {pods}, {changes}:\n{out}{err}");
        assert_eq!(exit, Some(*code), "{case}");
        // A command that refuses writes to stderr alone.
        let text = if out.is_empty() { &err } else { &out };
        // A missing world of `sim:` is a warning before the error.
        let found = text.lines().find(|line| !line.starts_with("warning: ")).unwrap_or_default();
        assert!(is_line(first, found), "{case}");
        assert!(is_line(last, text.lines().last().unwrap_or_default()), "{case}");
        let is_clean = (*inputs, *pods) == ("complete", "schedulable");
        assert!(is_clean || !out.contains("No changes."), "{case}");
    }
}
