//! Verdicts, reasons and their pairs, which index the counters.

/// What becomes of a packet.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    Pass,
    Drop,
    /// An observing rule's opinion; nothing happens to the packet.
    WouldDrop,
}

impl Verdict {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
            Self::WouldDrop => "would-drop",
        }
    }
}

/// Why.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Every limit had room.
    Within,
    /// A limit had no room.
    Over,
    /// The packet is dearer than the whole burst of a limit.
    Oversize,
    /// Judged by a crowd cell, because the limit's claim budget was spent.
    Crowd,
    Newcomer,
    Penalty,
    Ban,
    RulePass,
    RuleDrop,
    Default,
    Malformed,
    NonIp,
    /// Link survival.
    Link,
    /// Link survival beyond its budget.
    LinkOver,
    /// IGMP or a DHCP reply, spared.
    LinkSpared,
}

impl Reason {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::Over => "over",
            Self::Oversize => "oversize",
            Self::Crowd => "crowd",
            Self::Newcomer => "newcomer",
            Self::Penalty => "penalty",
            Self::Ban => "ban",
            Self::RulePass => "rule-pass",
            Self::RuleDrop => "rule-drop",
            Self::Default => "default",
            Self::Malformed => "malformed",
            Self::NonIp => "non-ip",
            Self::Link => "link",
            Self::LinkOver => "link-over",
            Self::LinkSpared => "link-spared",
        }
    }
}

/// Number of [`Outcome`]s.
pub const OUTCOMES: usize = 32;

/// A verdict with its reason: the index of a counter. Gaps are left for what later features add.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    PassWithin = 0,
    PassCrowd = 1,
    PassRule = 2,
    PassDefault = 3,
    PassNonIp = 4,
    PassLink = 5,
    PassLinkSpared = 6,
    PassMalformed = 7,
    DropOver = 8,
    DropOversize = 9,
    DropCrowd = 10,
    DropRule = 11,
    DropDefault = 12,
    DropMalformed = 13,
    DropLinkOver = 14,
    DropPenalty = 15,
    DropBan = 16,
    DropNewcomer = 17,
    WouldDropOver = 24,
    WouldDropOversize = 25,
    WouldDropCrowd = 26,
    WouldDropRule = 27,
    WouldDropPenalty = 28,
    WouldDropNewcomer = 29,
}

impl Outcome {
    pub const ALL: [Self; 24] = [
        Self::PassWithin,
        Self::PassCrowd,
        Self::PassRule,
        Self::PassDefault,
        Self::PassNonIp,
        Self::PassLink,
        Self::PassLinkSpared,
        Self::PassMalformed,
        Self::DropOver,
        Self::DropOversize,
        Self::DropCrowd,
        Self::DropRule,
        Self::DropDefault,
        Self::DropMalformed,
        Self::DropLinkOver,
        Self::DropPenalty,
        Self::DropBan,
        Self::DropNewcomer,
        Self::WouldDropOver,
        Self::WouldDropOversize,
        Self::WouldDropCrowd,
        Self::WouldDropRule,
        Self::WouldDropPenalty,
        Self::WouldDropNewcomer,
    ];

    /// The outcome of that number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| *outcome as u8 == number)
    }

    pub const fn verdict(self) -> Verdict {
        match self as u8 {
            0..=7 => Verdict::Pass,
            8..=23 => Verdict::Drop,
            _ => Verdict::WouldDrop,
        }
    }

    /// Whether limits decided it, and not a verdict.
    pub const fn is_of_limits(self) -> bool {
        matches!(
            self.reason(),
            Reason::Within
                | Reason::Over
                | Reason::Oversize
                | Reason::Crowd
                | Reason::Newcomer
                | Reason::Penalty
        )
    }

    pub const fn reason(self) -> Reason {
        match self {
            Self::PassWithin => Reason::Within,
            Self::PassCrowd | Self::DropCrowd | Self::WouldDropCrowd => Reason::Crowd,
            Self::PassRule => Reason::RulePass,
            Self::DropRule | Self::WouldDropRule => Reason::RuleDrop,
            Self::PassDefault | Self::DropDefault => Reason::Default,
            Self::PassNonIp => Reason::NonIp,
            Self::PassLink => Reason::Link,
            Self::PassLinkSpared => Reason::LinkSpared,
            Self::PassMalformed | Self::DropMalformed => Reason::Malformed,
            Self::DropOver | Self::WouldDropOver => Reason::Over,
            Self::DropOversize | Self::WouldDropOversize => Reason::Oversize,
            Self::DropLinkOver => Reason::LinkOver,
            Self::DropPenalty | Self::WouldDropPenalty => Reason::Penalty,
            Self::DropBan => Reason::Ban,
            Self::DropNewcomer | Self::WouldDropNewcomer => Reason::Newcomer,
        }
    }
}
