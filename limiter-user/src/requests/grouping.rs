//! Which limits must live on one shard, and what names the shard.
//!
//! A decision is one script, so all its keys carry one tag. Endpoints that share a named limit are one
//! group: the shared bucket has one key, whichever endpoint asks. The tag is made of what all limits of the
//! group are counted by, so that different callers spread over a cluster; only a group whose limits have
//! nothing in common is tagged by its name, and one shard carries it.

use super::identity::{Element, Scope};
use super::policy::Tag;

/// One endpoint, as far as grouping goes.
pub struct Member<'a> {
    pub endpoint: &'a str,
    pub scopes: Vec<&'a Scope>,
    /// Named limits it uses.
    pub shared: Vec<&'a str>,
}

/// The tag of each member, in order.
pub fn tags(members: &[Member<'_>]) -> Vec<Tag> {
    let mut group: Vec<usize> = (0..members.len()).collect();
    // Few endpoints: joining until nothing changes is plain and fast enough.
    let mut changed = true;
    while changed {
        changed = false;
        for a in 0..members.len() {
            for b in 0..a {
                let joined = members[a].shared.iter().any(|name| members[b].shared.contains(name));
                if joined && group[a] != group[b] {
                    let lower = group[a].min(group[b]);
                    (group[a], group[b]) = (lower, lower);
                    changed = true;
                }
            }
        }
    }
    (0..members.len())
        .map(|member| {
            let in_group =
                || members.iter().zip(&group).filter(|(_, of)| **of == group[member]).map(|(m, _)| m);
            let common = common(in_group().flat_map(|other| other.scopes.iter().copied()));
            if !common.is_empty() {
                return Tag::Common(common);
            }
            // The first by name, so that moving endpoints in the file moves no state.
            let name = in_group().map(|other| other.endpoint).min().unwrap_or_default();
            Tag::Group(name.to_owned())
        })
        .collect()
}

/// The elements every scope has, sorted. `endpoint` differs within a group and is nobody's common part.
fn common<'a>(mut scopes: impl Iterator<Item = &'a Scope>) -> Vec<Element> {
    let Some(first) = scopes.next() else { return Vec::new() };
    let mut common: Vec<Element> =
        first.0.iter().filter(|element| !element.names_endpoint()).cloned().collect();
    for scope in scopes {
        common.retain(|element| scope.0.contains(element));
    }
    // By text: whoever makes keys in another language can do the same.
    common.sort_by_key(Element::to_string);
    common.dedup();
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(elements: &[&str]) -> Scope {
        Scope(elements.iter().map(|text| Element::parse(text).unwrap()).collect())
    }

    fn tag(elements: &[&str]) -> Tag {
        Tag::Common(scope(elements).0)
    }

    #[test]
    fn the_tag_is_what_all_limits_have_in_common() {
        let (source, account) = (scope(&["source"]), scope(&["account"]));
        let both = scope(&["source", "account"]);
        let key = scope(&["api-key | source"]);
        let endpoint = scope(&["endpoint"]);
        let member = |name, scopes: &[&'static Scope], shared: &[&'static str]| Member {
            endpoint: name,
            scopes: scopes.to_vec(),
            shared: shared.to_vec(),
        };
        // The scopes outlive the test.
        let leak = |scope: Scope| -> &'static Scope { Box::leak(Box::new(scope)) };
        let (source, account, both) = (leak(source), leak(account), leak(both));
        let (key, endpoint) = (leak(key), leak(endpoint));

        assert_eq!(tags(&[member("a", &[source], &[])]), [tag(&["source"])]);
        assert_eq!(tags(&[member("a", &[source, both], &[])]), [tag(&["source"])]);
        assert_eq!(tags(&[member("a", &[both], &[])]), [tag(&["account", "source"])]);
        assert_eq!(tags(&[member("a", &[source, account], &[])]), [Tag::Group("a".into())]);
        assert_eq!(tags(&[member("a", &[key, key], &[])]), [tag(&["api-key | source"])]);
        // `api-key | source` is not `source`: for one caller it may be another value.
        assert_eq!(tags(&[member("a", &[key, source], &[])]), [Tag::Group("a".into())]);
        assert_eq!(tags(&[member("a", &[endpoint], &[])]), [Tag::Group("a".into())]);
    }

    #[test]
    fn a_shared_limit_gives_its_endpoints_one_tag() {
        let (source, account) = (scope(&["source"]), scope(&["account"]));
        let member = |endpoint, scopes, shared| Member { endpoint, scopes, shared };
        // a and b share one limit, b and c another: one group, though a and c share none.
        let joined = tags(&[
            member("a", vec![&account], vec!["one"]),
            member("x", vec![&source], vec![]),
            member("c", vec![&account, &source], vec!["two"]),
            member("b", vec![&account], vec!["one", "two"]),
        ]);
        let group = Tag::Group("a".into());
        assert_eq!(joined, [group.clone(), tag(&["source"]), group.clone(), group]);
        let joined = tags(&[
            member("a", vec![&account], vec!["one"]),
            member("b", vec![&account, &account], vec!["one"]),
        ]);
        assert_eq!(joined, [tag(&["account"]), tag(&["account"])]);
    }
}
