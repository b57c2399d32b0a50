//! `watch`: what is dropped, as it is dropped. As lines, as JSON, or as a capture that tcpdump reads.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use serde::de::DeserializeOwned;

use super::Format;
use super::attach::encode;
use super::output::{Problem, say, write_out};
use crate::control::api::{Event, Lost};
use crate::control::client::{Client, Message};

#[derive(Debug, Args)]
pub struct WatchArguments {
    /// Only what this rule drops, or would
    #[arg(long)]
    rule: Option<String>,

    /// Only from this address or prefix
    #[arg(long, value_name = "CIDR")]
    source: Option<String>,

    /// End after so many
    #[arg(short, value_name = "N")]
    number: Option<u64>,

    /// Write the packets' first 128 bytes as a capture (pcapng); `-` is standard output
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

pub async fn run(client: &Client, arguments: WatchArguments, format: Format) -> Result<ExitCode, Problem> {
    let WatchArguments { rule, source, number, pcap } = arguments;
    let mut path = format!("/v1/events?frames={}", pcap.is_some());
    for (key, value) in [("rule", &rule), ("source", &source)] {
        if let Some(value) = value {
            path += &format!("&{key}={}", encode(value));
        }
    }
    let mut messages = client.stream(&path).await?;
    let mut sink = match &pcap {
        Some(file) => Sink::Capture(Capture::create(file)?),
        None => Sink::Lines(format),
    };
    let mut left = number.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(message) = messages.next().await? else {
            return Err(Problem::failed("limiterd ended the stream", None));
        };
        match sink.write(&message) {
            Ok(written) => left -= u64::from(written),
            // Whoever read has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            Err(error) => return Err(Problem::failed(format!("cannot write: {error}"), None)),
        }
    }
    Ok(ExitCode::SUCCESS)
}

enum Sink {
    Lines(Format),
    Capture(Capture),
}

impl Sink {
    /// Whether the message was a drop.
    fn write(&mut self, message: &Message) -> io::Result<bool> {
        let is_drop = message.kind == "drop";
        match self {
            Self::Lines(Format::Json) => write_out(&format!("{}\n", message.data))?,
            Self::Lines(Format::Text) if is_drop => write_out(&line(&read(message)?))?,
            Self::Capture(capture) if is_drop => capture.write(&read(message)?)?,
            _ if message.kind == "lost" => {
                let Lost { lost } = read(message)?;
                say(&format!("({lost} more, not shown)\n"));
            }
            _ => {}
        }
        Ok(is_drop)
    }
}

pub fn read<T: DeserializeOwned>(message: &Message) -> io::Result<T> {
    serde_json::from_str(&message.data).map_err(io::Error::other)
}

/// `2026-12-01T05:00:00.123456Z eth0 drop over dns 203.0.113.9:4321 > udp/53 60 B`
pub fn line(event: &Event) -> String {
    let time = humantime::parse_rfc3339(&event.time)
        .map_or_else(|_| event.time.clone(), |time| humantime::format_rfc3339_micros(time).to_string());
    let rule = if event.rule.is_empty() { "-" } else { &event.rule };
    let source = match (event.source, event.source_port) {
        (None, _) => "-".to_owned(),
        (Some(IpAddr::V6(address)), Some(port)) => format!("[{address}]:{port}"),
        (Some(address), Some(port)) => format!("{address}:{port}"),
        (Some(address), None) => address.to_string(),
    };
    let to = match event.destination_port.or(event.icmp_type) {
        Some(number) => format!("{}/{number}", event.protocol),
        None => event.protocol.clone(),
    };
    let Event { interface, verdict, reason, length, .. } = event;
    let observed = event.observed.as_ref().map_or_else(String::new, |observed| {
        format!(" ({} would drop it: {})", observed.rule, observed.reason)
    });
    format!("{time} {interface} {verdict} {reason} {rule} {source} > {to} {length} B{observed}\n")
}

/// A pcapng file: each packet carries its verdict, reason and rule as a comment.
struct Capture {
    writer: PcapNgWriter<Box<dyn Write>>,
    /// Interfaces described so far, by their place.
    interfaces: Vec<String>,
}

/// Bytes of a packet limiter keeps.
const SNAPLEN: u32 = limiter_common::event::FRAME_BYTES as u32;

impl Capture {
    fn create(path: &Path) -> Result<Self, Problem> {
        let cannot = |error: &dyn std::fmt::Display| {
            Problem::failed(format!("cannot write `{}`: {error}", path.display()), None)
        };
        let file: Box<dyn Write> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            Box::new(File::create(path).map_err(|error| cannot(&error))?)
        };
        let mut writer = PcapNgWriter::new(file).map_err(|error| cannot(&error))?;
        writer.get_mut().flush().map_err(|error| cannot(&error))?;
        Ok(Self { writer, interfaces: Vec::new() })
    }

    fn write(&mut self, event: &Event) -> io::Result<()> {
        let Some(frame) = &event.frame else { return Ok(()) };
        let bytes = STANDARD.decode(&frame.bytes).map_err(io::Error::other)?;
        let interface_id = self.interface(&event.interface)?;
        let time = humantime::parse_rfc3339(&event.time).map_err(io::Error::other)?;
        let rule = if event.rule.is_empty() { "-" } else { &event.rule };
        let comment = format!("{} {} {rule}", event.verdict, event.reason);
        self.block(EnhancedPacketBlock {
            interface_id,
            timestamp: time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO),
            original_len: frame.length,
            data: Cow::Owned(bytes),
            options: vec![EnhancedPacketOption::Comment(Cow::Owned(comment))],
        })?;
        // A capture that is cut short ends behind a whole packet.
        self.writer.get_mut().flush()
    }

    /// The place of an interface, which is described when it is new.
    fn interface(&mut self, name: &str) -> io::Result<u32> {
        let place = match self.interfaces.iter().position(|known| known == name) {
            Some(place) => place,
            None => {
                self.interfaces.push(name.to_owned());
                self.block(InterfaceDescriptionBlock {
                    linktype: DataLink::ETHERNET,
                    snaplen: SNAPLEN,
                    options: vec![
                        InterfaceDescriptionOption::IfName(Cow::Owned(name.to_owned())),
                        // Times are in units of 10^-9 s.
                        InterfaceDescriptionOption::IfTsResol(9),
                    ],
                })?;
                self.interfaces.len() - 1
            }
        };
        Ok(place as u32)
    }

    fn block<'a>(&mut self, block: impl pcap_file::pcapng::PcapNgBlock<'a>) -> io::Result<()> {
        match self.writer.write_pcapng_block(block) {
            Ok(_) => Ok(()),
            Err(pcap_file::PcapError::IoError(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}
