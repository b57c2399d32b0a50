//! The ACL user limiter needs: its own keys, and the commands it sends.

/// What a user of limiter may send and no more. Without `publish` it cannot write the policy's function library.
const COMMANDS: [&str; 24] = [
    "+eval",
    "+evalsha",
    "+time",
    "+get",
    "+set",
    "+del",
    "+ping",
    "+client|setinfo",
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
    "+pexpire",
];

/// The rules of `ACL SETUSER <user>` for a host of the fleet, without its password: the keys of one namespace, the
/// commands the store sends, no channels.
pub fn acl_rules(namespace: &str) -> String {
    format!("resetkeys ~{namespace}:* resetchannels -@all {}", COMMANDS.join(" "))
}
