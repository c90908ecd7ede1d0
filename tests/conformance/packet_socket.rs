//! A socket that takes and gives whole frames of one interface.
//!
//! With each frame goes what the kernel still owes it (checksum, division into segments: `PACKET_VNET_HDR`), so that frames may be
//! handed on as they come.

#![allow(unsafe_code, reason = "no crate that we use binds packet sockets")]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Length of what goes before each frame: `struct virtio_net_hdr`.
pub(crate) const PREFIX_BYTES: usize = 10;
/// Longest frame, undivided, and what goes before it.
pub(crate) const FRAME_BYTES_MAX: usize = PREFIX_BYTES + 14 + 65_536 + 64;
/// How long a read waits at most.
const PATIENCE: Duration = Duration::from_millis(250);
/// Room for frames that nobody has read yet.
const ROOM_BYTES: usize = 8 << 20;

/// Opens the socket of an interface of the calling thread's namespace.
///
/// # Errors
/// What the system says.
pub(crate) fn open(interface: &str) -> io::Result<OwnedFd> {
    // Without a protocol it takes nothing until it is bound.
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    sockopt::set_socket_recv_buffer_size_force(&socket, ROOM_BYTES)?;
    for option in [libc::PACKET_VNET_HDR, libc::PACKET_IGNORE_OUTGOING] {
        set(&socket, option)?;
    }
    let index = rustix::net::netdevice::name_to_index(&socket, interface)?;
    // SAFETY: all of its fields are numbers, for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address outlives the call, which reads `length` bytes of it.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if result == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// Switches on an option of packet sockets.
fn set(socket: &OwnedFd, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value outlives the call, which reads `length` bytes of it.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, (&raw const on).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
