//! Inbound connections.

use super::manager::{NetworkShared, is_private_ip, subnet};
use crate::session::add;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{net::TcpListener, sync::Semaphore};

/// Maximum number of connections of one public /24 (IPv4) or /64 (IPv6) that are not peers yet.
const MAX_HALF_OPEN_SUBNET: usize = 8;

/// Maximum number of connections from one public address within [`WINDOW`].
const MAX_ATTEMPTS: u32 = 3;

/// The time window in which attempts are counted.
const WINDOW: Duration = Duration::from_secs(30);

/// Maximum number of addresses whose attempts are counted.
const MAX_ADDRESSES: usize = 4096;

/// Accepts connections until the runtime ends. At most `half_open` of them are not peers yet.
pub(super) async fn run(shared: Arc<NetworkShared>, listener: TcpListener, half_open: usize) {
    let half_open = Arc::new(Semaphore::new(half_open.max(1)));
    let throttle = Arc::new(Mutex::new(InboundThrottle::default()));
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Usually the process is out of file descriptors: other connections must end first.
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        add(&shared.context.stats.accepted, 1);
        let place = half_open.clone().try_acquire_owned();
        let (Ok(place), false) = (place, shared.quitting()) else {
            add(&shared.context.stats.throttled, 1);
            continue;
        };
        if !throttle.lock().enter(address.ip(), Instant::now()) {
            add(&shared.context.stats.throttled, 1);
            continue;
        }
        let (shared, throttle) = (shared.clone(), throttle.clone());
        tokio::spawn(async move {
            let leave = HalfOpenGuard { throttle, ip: address.ip(), _place: place };
            let peer = shared.connect(stream, None).await;
            drop(leave);
            if let Ok(peer) = peer {
                shared.run_session(peer).await;
            }
        });
    }
}

/// Leaves the throttle and the half-open semaphore when it is dropped.
struct HalfOpenGuard {
    throttle: Arc<Mutex<InboundThrottle>>,
    ip: IpAddr,
    _place: tokio::sync::OwnedSemaphorePermit,
}

impl Drop for HalfOpenGuard {
    fn drop(&mut self) {
        self.throttle.lock().leave(self.ip);
    }
}

/// Counts the connection attempts of public addresses.
#[derive(Debug, Default)]
struct InboundThrottle {
    half_open: HashMap<u64, usize>,
    attempts: HashMap<IpAddr, (Instant, u32)>,
}

impl InboundThrottle {
    /// Whether a connection may go on. If so, the caller must call [`leave`](Self::leave) later.
    fn enter(&mut self, ip: IpAddr, now: Instant) -> bool {
        if is_private_ip(ip) {
            return true;
        }
        if self.attempts.len() >= MAX_ADDRESSES {
            self.attempts.retain(|_, (first, _)| now < *first + WINDOW);
            if self.attempts.len() >= MAX_ADDRESSES {
                return false;
            }
        }
        let (first, count) = self.attempts.entry(ip).or_insert((now, 0));
        if now >= *first + WINDOW {
            (*first, *count) = (now, 0);
        }
        *count += 1;
        if *count > MAX_ATTEMPTS {
            return false;
        }
        let half_open = self.half_open.entry(subnet(ip)).or_default();
        if *half_open >= MAX_HALF_OPEN_SUBNET {
            return false;
        }
        *half_open += 1;
        true
    }

    fn leave(&mut self, ip: IpAddr) {
        if is_private_ip(ip) {
            return;
        }
        if let Some(half_open) = self.half_open.get_mut(&subnet(ip)) {
            *half_open -= 1;
            if *half_open == 0 {
                self.half_open.remove(&subnet(ip));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn public(last: u8) -> IpAddr {
        Ipv4Addr::new(8, 8, 8, last).into()
    }

    #[test]
    fn an_address_may_come_three_times_in_half_a_minute() {
        let mut throttle = InboundThrottle::default();
        let now = Instant::now();
        for _ in 0..3 {
            assert!(throttle.enter(public(1), now));
            throttle.leave(public(1));
        }
        assert!(!throttle.enter(public(1), now));
        assert!(throttle.enter(public(2), now), "others may");
        assert!(throttle.enter(public(1), now + WINDOW));
    }

    #[test]
    fn a_subnet_has_eight_half_open_connections_and_private_ones_have_no_limit() {
        let mut throttle = InboundThrottle::default();
        let now = Instant::now();
        assert!((0..8).all(|last| throttle.enter(public(last), now)));
        assert!(!throttle.enter(public(100), now));
        throttle.leave(public(0));
        assert!(throttle.enter(public(101), now));
        assert!((0..100).all(|_| throttle.enter(Ipv4Addr::LOCALHOST.into(), now)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut throttle = InboundThrottle::default();
        let now = Instant::now();
        for number in 0..5000_u32 {
            let ip = IpAddr::from(Ipv4Addr::from(0x0808_0000 + (number << 8)));
            if throttle.enter(ip, now) {
                throttle.leave(ip);
            }
        }
        assert_eq!(throttle.attempts.len(), MAX_ADDRESSES);
        assert!(throttle.half_open.is_empty());
        assert!(throttle.enter(Ipv4Addr::new(9, 9, 9, 9).into(), now + WINDOW));
    }
}
