//! The ACL user limiter needs: its own keys, and the commands it sends.

/// What limiter sends.
const COMMANDS: [&str; 24] = [
    "+eval",
    "+evalsha",
    "+time",
    "+get",
    "+set",
    "+del",
    "+ping",
    "+hello",
    "+select",
    "+fcall",
    "+function|list",
    "+function|load",
    "+watch",
    "+unwatch",
    "+multi",
    "+exec",
    "+zadd",
    "+zcard",
    "+zrem",
    "+zrange",
    "+zrangebyscore",
    "+zremrangebyscore",
    "+zremrangebyrank",
    "+pexpire",
];

/// The rules of `ACL SETUSER <user>` for a host of the fleet, without its password: the keys of one namespace, the
/// commands the store sends, no channels.
pub fn acl_rules(namespace: &str) -> String {
    format!("resetkeys ~{namespace}:* resetchannels -@all {}", COMMANDS.join(" "))
}
