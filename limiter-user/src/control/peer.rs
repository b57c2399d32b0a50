//! Who is at the other end of the socket, as the kernel says.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;

use tokio::net::UnixStream;

/// Credentials of a connected peer, taken when it connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    /// 0 when the kernel does not know it (another pid namespace).
    pub pid: i32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Peer {
    pub fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        Ok(Self {
            uid: credentials.uid(),
            gid: credentials.gid(),
            pid: credentials.pid().unwrap_or(0),
            groups: groups(stream)?,
        })
    }

    /// Root, or a member of the group that may change things.
    pub fn may_change(&self, admin_group: Option<u32>) -> bool {
        self.uid == 0 || admin_group.is_some_and(|group| self.gid == group || self.groups.contains(&group))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "uid {}", self.uid)
    }
}

/// `SO_PEERGROUPS` (Linux 4.13): the peer's own groups, without a look at any user database.
fn groups(stream: &UnixStream) -> io::Result<Vec<u32>> {
    // NGROUPS_MAX is 65 536; the kernel answers ERANGE with the size needed.
    let mut groups = vec![0u32; 64];
    loop {
        let mut bytes = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: `groups` is writable for `bytes` bytes, and both pointers live through the call.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_peer_is_who_the_kernel_says() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        assert_eq!(peer.uid, nix::unistd::getuid().as_raw());
        assert_eq!(peer.pid, std::process::id() as i32);
        let mut expected: Vec<u32> =
            nix::unistd::getgroups().unwrap().into_iter().map(nix::unistd::Gid::as_raw).collect();
        let mut groups = peer.groups;
        expected.sort_unstable();
        groups.sort_unstable();
        assert_eq!(groups, expected);
    }

    #[test]
    fn root_and_the_admin_group_may_change_things() {
        let peer = |uid, gid, groups: &[u32]| Peer { uid, gid, pid: 1, groups: groups.to_vec() };
        assert!(peer(0, 0, &[]).may_change(None));
        assert!(!peer(1000, 1000, &[27]).may_change(None));
        assert!(!peer(1000, 1000, &[27]).may_change(Some(500)));
        assert!(peer(1000, 500, &[]).may_change(Some(500)));
        assert!(peer(1000, 1000, &[27, 500]).may_change(Some(500)));
    }
}
