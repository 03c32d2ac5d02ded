//! Counters of nominations.

use super::*;
use crate::apply::ports::CallEffect;
use crate::testing::controller::at;
use crate::testing::world::pod;

#[test]
fn bound_pods_count_as_honored_and_others_as_dropped_once() {
    let (mut nominations, mut counters) = (AcceptedNominations::default(), Counters::default());
    let refused = PortError {
        verb: "nominate pod".to_owned(),
        reason: "the pod has changed".to_owned(),
        effect: CallEffect::NotApplied,
    };
    for (name, answer) in
        [("a", Ok(())), ("b", Ok(())), ("c", Ok(())), ("d", Ok(())), ("e", Err(refused))]
    {
        let uid = format!("uid-of-{name}").as_str().into();
        nominations.record_answer(uid, "n".into(), &answer, &mut counters);
    }
    // One is where it was nominated, one elsewhere, one is gone, and one is pending.
    let placed = [("a", Some("n")), ("b", Some("other")), ("d", None), ("e", Some("n"))];
    let pods = placed.map(|(name, node)| Pod {
        uid: format!("uid-of-{name}").as_str().into(),
        node: node.map(NodeName::from),
        ..pod(name)
    });
    let world = Observed::of_cluster("c", at(1)).with_pods(pods);
    for _ in 0..2 {
        nominations.record_bindings(&world, &mut counters);
        let counted = [
            Counter::NominationsMade,
            Counter::NominationsRefused,
            Counter::NominationsHonored,
            Counter::NominationsDropped,
        ];
        assert_eq!(counted.map(|counter| counters.get(&counter)), [5, 1, 1, 2]);
    }
}
