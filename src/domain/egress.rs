//! Egress rules: may this address be connected to?
//!
//! Endpoints are data, so the question is asked of the address that a connection is about to be opened to, after name
//! resolution: a name that resolves to something else the second time gains nothing. This module only decides; it resolves
//! and connects nothing.
//!
//! The order: the operator's floor, the policy's deny list, the policy's allow list, the built-in refusals, private ranges.
//! The first that speaks is right.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};

/// Addresses at which clouds hand out credentials to whoever asks from inside.
const METADATA: [IpAddr; 10] = [
    // AWS, Azure, Google, OpenStack, DigitalOcean and most others.
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
    // AWS: container credentials, EKS pod identities.
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
    // Alibaba, within the range of carrier-grade NAT.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    // Azure's wire server, a public address.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Oracle's older service.
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    // AWS over IPv6: metadata, EKS pod identities.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    // Google over IPv6.
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    // Scaleway over IPv6.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
];

/// Addresses that mean something on one link only. Constants, so that a wrong prefix would not compile.
const LINK_LOCAL: [IpNet; 2] = [
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(169, 254, 0, 0)), 16),
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10),
];

/// What a relay may connect to: the policy's `egress`, with the operator's floor and what it knows of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressRules {
    /// Whether addresses of private networks are in order, as receivers inside the cluster are.
    pub allow_private: bool,
    /// Allowed whatever the built-in refusals and `allow_private` say.
    pub allow: Vec<IpNet>,
    /// Refused even if allowed.
    pub deny: Vec<IpNet>,
    /// The operator's own deny list, which no policy lifts.
    pub floor: Vec<IpNet>,
    /// Addresses of the Kubernetes API.
    pub api_server: Vec<IpAddr>,
}

impl Default for EgressRules {
    /// An empty policy under the operator's default floor.
    fn default() -> Self {
        Self {
            allow_private: true,
            allow: Vec::new(),
            deny: Vec::new(),
            floor: default_floor(),
            api_server: Vec::new(),
        }
    }
}

/// An address that may not be connected to. `category` is one of a dozen constant names, fit for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the address {address} is refused: {}", mend(.category))]
pub struct Blocked {
    /// Why: `floor`, `denied`, `metadata`, `api_server`, `unspecified`, `loopback`, `link_local`, `multicast`, `broadcast`,
    /// `private`.
    pub category: &'static str,
    /// The address, IPv4 where an IPv6 address stands for one.
    pub address: IpAddr,
}

/// The floor of an operator that was told nothing else: link-local and metadata addresses.
#[must_use]
pub fn default_floor() -> Vec<IpNet> {
    LINK_LOCAL.into_iter().chain(METADATA.map(IpNet::from)).collect()
}

impl EgressRules {
    /// Decides on an address that is about to be connected to.
    ///
    /// # Errors
    ///
    /// [`Blocked`] with the first reason found.
    pub fn check(&self, connected: IpAddr) -> Result<(), Blocked> {
        let address = unwrapped(connected);
        let blocked = |category| Err(Blocked { category, address });

        // A refusal holds for the address as it is and for the one it stands for; a permission only for the latter, so
        // that `::/0` does not open the whole of IPv4.
        let refused_by = |nets: &[IpNet]| holds(nets, address) || holds(nets, connected);
        if refused_by(&self.floor) {
            return blocked("floor");
        }
        if refused_by(&self.deny) {
            return blocked("denied");
        }
        if holds(&self.allow, address) {
            return Ok(());
        }
        if METADATA.contains(&address) {
            return blocked("metadata");
        }
        if self.api_server.iter().any(|api_server| unwrapped(*api_server) == address) {
            return blocked("api_server");
        }
        let category = match address {
            IpAddr::V4(v4) => refused_v4(v4),
            IpAddr::V6(v6) => refused_v6(v6),
        };
        match category {
            Some(category) => blocked(category),
            None if is_private(address) && !self.allow_private => blocked("private"),
            None => Ok(()),
        }
    }
}

fn mend(category: &str) -> &'static str {
    match category {
        "floor" => "no policy may reach it (link-local, metadata, or the operator's own deny list)",
        "denied" => "the policy's egress.denyCidrs hold it",
        "private" => "it is private: set egress.allowPrivate, or list it in egress.allowCidrs, if it is meant",
        "loopback" => "it is this machine itself: list it in egress.allowCidrs if it is meant",
        "metadata" => "it hands out credentials: list it in egress.allowCidrs if it is meant",
        "api_server" => "it is the Kubernetes API: list it in egress.allowCidrs if it is meant",
        _ => "it is no address of one receiver: list it in egress.allowCidrs if it is meant",
    }
}

fn refused_v4(address: Ipv4Addr) -> Option<&'static str> {
    // All of 0.0.0.0/8 means "this host" somewhere, not its first address alone.
    let [first, ..] = address.octets();
    if first == 0 {
        Some("unspecified")
    } else if address.is_loopback() {
        Some("loopback")
    } else if address.is_link_local() {
        Some("link_local")
    } else if address.is_multicast() {
        Some("multicast")
    } else if address.is_broadcast() {
        Some("broadcast")
    } else {
        None
    }
}

fn refused_v6(address: Ipv6Addr) -> Option<&'static str> {
    if address.is_unspecified() {
        Some("unspecified")
    } else if address.is_loopback() {
        Some("loopback")
    } else if address.is_unicast_link_local() {
        Some("link_local")
    } else if address.is_multicast() {
        Some("multicast")
    } else {
        None
    }
}

/// Addresses of networks that are not the internet: RFC 1918, carrier-grade NAT (RFC 6598), 240.0.0.0/4, which clouds hand
/// to pods; unique local addresses (RFC 4193) and the site-local ones before them.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            v4.is_private() || (first == 100 && second & 0xc0 == 64) || first >= 240
        }
        IpAddr::V6(v6) => {
            let [first, ..] = v6.segments();
            v6.is_unique_local() || first & 0xffc0 == 0xfec0
        }
    }
}

/// The IPv4 address that an IPv6 address stands for, where a host or a gateway on the way would turn it into one:
/// mapped (`::ffff:a.b.c.d`), compatible (`::a.b.c.d`), translated (`::ffff:0:a.b.c.d`), NAT64 (`64:ff9b::a.b.c.d`, and
/// `64:ff9b:1::/48` with the address last) and 6to4 (`2002:aabb:ccdd::`). Any other address is itself.
#[must_use]
pub fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else {
        return address;
    };
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match v6.segments() {
        // `::` and `::1` are addresses of their own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => address,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [0x2002, high, low, _, _, _, _, _] => embedded(high, low),
        _ => address,
    }
}

fn holds(nets: &[IpNet], address: IpAddr) -> bool {
    nets.iter().any(|net| net.contains(&address) || mapped_v4(*net).is_some_and(|v4| v4.contains(&address)))
}

/// The IPv4 network that was written as one of mapped addresses, such as `::ffff:10.0.0.0/104`.
fn mapped_v4(net: IpNet) -> Option<IpNet> {
    let IpNet::V6(v6) = net else {
        return None;
    };
    let prefix = v6.prefix_len().checked_sub(96)?;
    Ipv4Net::new(v6.addr().to_ipv4_mapped()?, prefix).ok().map(IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// An empty policy without floor, on a cluster whose API is at 10.96.0.1.
    fn bare() -> EgressRules {
        EgressRules { floor: Vec::new(), api_server: vec![ip("10.96.0.1")], ..EgressRules::default() }
    }

    fn category(rules: &EgressRules, address: &str) -> Option<&'static str> {
        rules.check(ip(address)).err().map(|blocked| blocked.category)
    }

    #[test]
    fn rc_37_what_points_inside_is_refused_by_default() {
        for (address, expected) in [
            ("127.0.0.1", Some("loopback")),
            ("127.255.255.254", Some("loopback")),
            ("::1", Some("loopback")),
            ("0.0.0.0", Some("unspecified")),
            ("0.1.2.3", Some("unspecified")),
            ("::", Some("unspecified")),
            ("169.254.0.1", Some("link_local")),
            ("169.254.169.253", Some("link_local")),
            ("fe80::1", Some("link_local")),
            ("febf::1", Some("link_local")),
            ("169.254.169.254", Some("metadata")),
            ("169.254.170.2", Some("metadata")),
            ("100.100.100.200", Some("metadata")),
            ("168.63.129.16", Some("metadata")),
            ("fd00:ec2::254", Some("metadata")),
            ("fd20:ce::254", Some("metadata")),
            ("224.0.0.1", Some("multicast")),
            ("239.255.255.255", Some("multicast")),
            ("ff02::1", Some("multicast")),
            ("255.255.255.255", Some("broadcast")),
            ("10.96.0.1", Some("api_server")),
            // Spellings in IPv6 of what is refused in IPv4.
            ("::ffff:169.254.169.254", Some("metadata")),
            ("::ffff:127.0.0.1", Some("loopback")),
            ("::ffff:0.0.0.0", Some("unspecified")),
            ("::127.0.0.1", Some("loopback")),
            ("::169.254.169.254", Some("metadata")),
            ("::ffff:0:127.0.0.1", Some("loopback")),
            ("64:ff9b::169.254.169.254", Some("metadata")),
            ("64:ff9b::10.96.0.1", Some("api_server")),
            ("64:ff9b:1::127.0.0.1", Some("loopback")),
            ("2002:7f00:1::", Some("loopback")),
            ("2002:a9fe:a9fe::1", Some("metadata")),
            // In-cluster receivers and the internet.
            ("10.0.0.1", None),
            ("10.96.0.2", None),
            ("172.16.0.1", None),
            ("192.168.1.1", None),
            ("100.64.0.1", None),
            ("fd00::1", None),
            ("93.184.216.34", None),
            ("2606:2800:220:1::1", None),
            ("64:ff9b::93.184.216.34", None),
            ("::ffff:93.184.216.34", None),
        ] {
            assert_eq!(category(&bare(), address), expected, "{address}");
        }
    }

    #[test]
    fn private_ranges_can_be_refused() {
        let rules = EgressRules { allow_private: false, ..bare() };
        for private in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "240.0.0.1",
            "fc00::1",
            "fdff::1",
            "fec0::1",
            "::ffff:10.0.0.1",
            "64:ff9b::192.168.0.1",
        ] {
            assert_eq!(category(&rules, private), Some("private"), "{private}");
            assert_eq!(category(&bare(), private), None, "{private}");
        }
        for public in
            ["172.15.255.255", "172.32.0.0", "100.63.255.255", "100.128.0.0", "192.169.0.0", "2001:db8::1", "fe00::1"]
        {
            assert_eq!(category(&rules, public), None, "{public}");
        }
        let except = EgressRules { allow: nets(&["10.1.0.0/16"]), ..rules };
        assert_eq!(category(&except, "10.1.2.3"), None);
        assert_eq!(category(&except, "10.2.2.3"), Some("private"));
    }

    #[test]
    fn allow_lifts_the_built_in_refusals_and_nothing_else() {
        let demo = EgressRules { allow: nets(&["127.0.0.0/8"]), ..EgressRules::default() };
        for allowed in ["127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::127.0.0.1"] {
            assert_eq!(category(&demo, allowed), None, "{allowed}");
        }
        assert_eq!(category(&demo, "::1"), Some("loopback"));
        let all = EgressRules { allow: nets(&["0.0.0.0/0", "::/0"]), ..bare() };
        for lifted in
            ["127.0.0.1", "::1", "10.96.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "0.0.0.0", "::"]
        {
            assert_eq!(category(&all, lifted), None, "{lifted}");
        }
        // All of IPv6 is not all of IPv4 in IPv6's clothes.
        let v6 = EgressRules { allow: nets(&["::/0", "64:ff9b::/96"]), ..bare() };
        for refused in ["::ffff:169.254.169.254", "64:ff9b::127.0.0.1", "::127.0.0.1"] {
            assert!(v6.check(ip(refused)).is_err(), "{refused}");
        }
    }

    #[test]
    fn deny_wins_over_allow_and_the_floor_over_both() {
        let rules = EgressRules {
            allow: nets(&["10.0.0.0/8", "0.0.0.0/0", "::/0"]),
            deny: nets(&["10.0.1.0/24", "2001:db8::/32"]),
            ..EgressRules::default()
        };
        assert_eq!(category(&rules, "10.0.0.1"), None);
        assert_eq!(category(&rules, "10.0.1.1"), Some("denied"));
        assert_eq!(category(&rules, "::ffff:10.0.1.1"), Some("denied"));
        assert_eq!(category(&rules, "2001:db8::1"), Some("denied"));
        for floor in [
            "169.254.169.254",
            "169.254.1.1",
            "::ffff:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "fe80::1",
            "fd00:ec2::254",
            "100.100.100.200",
        ] {
            assert_eq!(category(&rules, floor), Some("floor"), "{floor}");
        }
    }

    #[test]
    fn rules_may_be_written_in_either_family() {
        let mapped = EgressRules { deny: nets(&["::ffff:10.0.0.0/104"]), ..bare() };
        assert_eq!(category(&mapped, "10.1.2.3"), Some("denied"));
        assert_eq!(category(&mapped, "::ffff:10.1.2.3"), Some("denied"));
        assert_eq!(category(&mapped, "11.1.2.3"), None);
        let lifted = EgressRules { allow: nets(&["::ffff:127.0.0.1/128"]), ..bare() };
        assert_eq!(category(&lifted, "127.0.0.1"), None);
        assert_eq!(category(&lifted, "127.0.0.2"), Some("loopback"));
        // The gateway's prefix as a whole can be denied, and all of IPv6 without IPv4.
        let nat64 = EgressRules { deny: nets(&["64:ff9b::/96"]), ..bare() };
        assert_eq!(category(&nat64, "64:ff9b::93.184.216.34"), Some("denied"));
        let no_v6 = EgressRules { deny: nets(&["::/0"]), ..bare() };
        assert_eq!(category(&no_v6, "93.184.216.34"), None);
        assert_eq!(category(&no_v6, "2606:2800:220:1::1"), Some("denied"));
        let api = EgressRules { api_server: vec![ip("::ffff:192.0.2.1")], ..bare() };
        assert_eq!(category(&api, "192.0.2.1"), Some("api_server"));
    }

    #[test]
    fn messages_name_the_address_the_reason_and_the_mend() {
        let message = |address| EgressRules::default().check(ip(address)).unwrap_err().to_string();
        assert_eq!(
            message("::ffff:127.0.0.1"),
            "the address 127.0.0.1 is refused: it is this machine itself: list it in egress.allowCidrs if it is meant"
        );
        assert_eq!(
            message("169.254.169.254"),
            "the address 169.254.169.254 is refused: no policy may reach it (link-local, metadata, or the operator's own deny list)"
        );
    }

    proptest! {
        #[test]
        fn an_ipv4_address_is_judged_alike_in_every_clothing(octets in any::<[u8; 4]>(), private in any::<bool>()) {
            let v4 = Ipv4Addr::from(octets);
            let rules = EgressRules { allow_private: private, ..bare() };
            let plain = rules.check(IpAddr::V4(v4));
            let [a, b, c, d] = octets;
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            prop_assume!(u32::from(v4) > 1);
            for clothed in [
                v4.to_ipv6_mapped(),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 1, 2, 3, 4, 5),
            ] {
                prop_assert_eq!(rules.check(IpAddr::V6(clothed)), plain, "{}", clothed);
            }
        }

        #[test]
        fn no_allow_list_lifts_deny_or_floor(address in any::<IpAddr>(), by_floor in any::<bool>()) {
            let own = vec![IpNet::from(address)];
            let (deny, floor) = if by_floor { (Vec::new(), own) } else { (own, Vec::new()) };
            let allow = nets(&["0.0.0.0/0", "::/0"]);
            let rules = EgressRules { allow, deny, floor, ..bare() };
            prop_assert!(rules.check(address).is_err());
        }
    }
}
