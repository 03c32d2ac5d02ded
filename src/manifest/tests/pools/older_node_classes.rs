//! Node classes of v1beta1, and node templates of v1alpha1.

use super::*;

#[test]
fn older_node_classes_map_to_the_same_model() {
    let beta = class(
        "apiVersion: karpenter.k8s.aws/v1beta1\nkind: EC2NodeClass\nmetadata: {name: c}\n\
         spec: {amiFamily: AL2, role: r, subnetSelectorTerms: [{id: subnet-1}],\n  \
         securityGroupSelectorTerms: [{id: sg-1}]}",
    );
    assert_eq!((beta.ami_family, beta.image.as_str()), (AmiFamily::Al2, "al2@latest"));
    let template = |spec: &str| {
        class(&format!(
            "apiVersion: karpenter.k8s.aws/v1alpha1\nkind: AWSNodeTemplate\nmetadata: {{name: c}}\n\
             spec: {{instanceProfile: p, {spec}}}"
        ))
    };
    let bare = template("");
    assert_eq!((bare.ami_family, bare.generation), (AmiFamily::Al2, Generation::V1alpha5));
    let own = template("amiFamily: Ubuntu, amiSelector: {'aws::ids': ami-1}, tags: {a: b}");
    assert_eq!(
        (own.ami_family, own.image.as_str()),
        (AmiFamily::Ubuntu, "{\"aws::ids\":\"ami-1\"}")
    );
}

#[test]
fn selector_of_an_old_template_lists_values() {
    let template = |spec: &str| {
        format!(
            "apiVersion: karpenter.k8s.aws/v1alpha1\nkind: AWSNodeTemplate\nmetadata: {{name: c}}\n\
             spec: {{instanceProfile: p, {spec}}}"
        )
    };
    let settings = |spec: &str| class(&template(spec)).instance_settings;
    let subnets = |selector: &str| {
        describe_selectors(&settings(&format!("subnetSelector: {selector}")).subnets)
    };
    for (selector, expected) in [
        ("{aws-ids: 'subnet-1, subnet-2'}", "id subnet-1, or id subnet-2"),
        ("{'aws::ids': subnet-1}", "id subnet-1"),
        ("{a: 'b,c', d: e}", "tag a=b and tag d=e, or tag a=c and tag d=e"),
        ("{a: '*'}", "tag a=*"),
        // Only images have names and owners.
        ("{'aws::name': x}", "tag aws::name=x"),
    ] {
        assert_eq!(subnets(selector), expected, "{selector}");
    }
    let images = |selector: &str| {
        let term = |term: &ImageTerm| {
            let ImageTerm::Owned(selector, owner) = term else { panic!("{term:?}") };
            let selector = describe_selectors(std::slice::from_ref(selector));
            format!("{selector} of {}", owner.as_deref().unwrap_or("anyone"))
        };
        settings(&format!("amiSelector: {selector}")).images.iter().map(term).collect::<Vec<_>>()
    };
    assert_eq!(images("{'aws::ids': 'ami-1,ami-2'}"), ["id ami-1 of anyone", "id ami-2 of anyone"]);
    assert_eq!(
        images("{'aws::name': 'x,y', 'aws::owners': 'self, 123456789012'}"),
        ["name x of self", "name x of 123456789012", "name y of self", "name y of 123456789012"]
    );
    for (spec, expected) in [
        ("subnetSelector: {aws-ids: subnet-1, a: b}", "has ids beside other conditions"),
        ("subnetSelector: {aws-ids: sub-1}", "is `sub-1`, not an id"),
        ("subnetSelector: {a: ''}", "has a tag without a key or value"),
    ] {
        let found = problem(&template(spec));
        assert!(found.starts_with("error") && found.contains(expected), "{spec}\n{found}");
    }
    let many = (0..15).map(|n| format!("v{n}")).collect::<Vec<_>>().join(",");
    let many = problem(&template(&format!("subnetSelector: {{a: '{many}', b: '{many}'}}")));
    assert!(many.contains("stands for more than 200 combinations"), "{many}");
}
