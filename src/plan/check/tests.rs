use super::*;
#[test]
fn a_valid_plan_breaks_no_rule() {
    let inputs = crate::plan::fixture::inputs();
    assert_eq!(check(&crate::plan::fixture::plan(), &inputs.facts()), []);
}
