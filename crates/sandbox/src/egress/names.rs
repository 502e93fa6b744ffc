//! Names: which address stands for which name in a cell, and the answers to those who ask. Nothing is ever asked of
//! anybody else here, so nothing can be told to anybody in the name of a question.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use actum_contract::execution::{Verdict, allows};
use simple_dns::rdata::{A, RData};
use simple_dns::{CLASS, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};
use tokio::net::UdpSocket;

use super::Shared;

/// Names of one cell. With a wildcard in the list it could make up as many as it likes.
const NAMES_MAX: usize = 4_096;

/// Seconds that an answer is good for: as long as the cell.
const ANSWER_SECONDS: u32 = 600;

/// Where the addresses begin that stand for names. All of 127/8 is the cell's own.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 1);

#[derive(Debug, Default)]
pub(super) struct Names {
    by_name: BTreeMap<String, Ipv4Addr>,
    by_address: BTreeMap<Ipv4Addr, String>,
    refused: std::collections::BTreeSet<String>,
}

impl Names {
    /// The address that stands for a name from now on.
    pub(super) fn address(&mut self, name: &str) -> Option<Ipv4Addr> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if let Some(address) = self.by_name.get(&name) {
            return Some(*address);
        }
        if self.by_name.len() >= NAMES_MAX {
            return None;
        }
        let address = Ipv4Addr::from(u32::from(FIRST) + u32::try_from(self.by_name.len()).ok()?);
        self.by_name.insert(name.clone(), address);
        self.by_address.insert(address, name);
        Some(address)
    }

    /// The name that an address stands for; an address that stands for none is its own name.
    pub(super) fn name(&self, address: IpAddr) -> String {
        match address {
            IpAddr::V4(v4) => self.by_address.get(&v4).cloned().unwrap_or_else(|| v4.to_string()),
            IpAddr::V6(v6) => v6.to_canonical().to_string(),
        }
    }

    /// True the first time, so that a program that asks again and again does not fill the log.
    fn is_new_refusal(&mut self, name: &str) -> bool {
        self.refused.len() < NAMES_MAX && self.refused.insert(name.to_owned())
    }
}

/// Answers until the cell is gone.
pub(super) async fn answer(shared: &Shared, socket: &UdpSocket) {
    let mut bytes = [0_u8; 1500];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut bytes).await else {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        if let Some(reply) = reply(shared, &bytes[..length]) {
            let _ = socket.send_to(&reply, from).await;
        }
    }
}

fn reply(shared: &Shared, bytes: &[u8]) -> Option<Vec<u8>> {
    let asked = Packet::parse(bytes).ok()?;
    let question = asked.questions.first().filter(|_| !asked.has_flags(PacketFlag::RESPONSE))?;
    let name = question.qname.to_string();
    let mut reply = Packet::new_reply(asked.id());
    reply.set_flags(PacketFlag::RECURSION_AVAILABLE | (PacketFlag::RECURSION_DESIRED));
    reply.questions.push(question.clone());
    let verdict = allows(&shared.rules.allow, &shared.rules.deny, &name, None);
    let mut names = shared.names.lock().ok()?;
    if let Verdict::Blocked { .. } = &verdict {
        *reply.rcode_mut() = RCODE::NameError;
        if names.is_new_refusal(&name) {
            shared.note(shared.decision("name", &name, None, &verdict), Arc::default());
        }
    } else if question.qtype == QTYPE::TYPE(TYPE::A) {
        // There are no others: an address of the newer kind does not exist for the cell, and texts are no way out.
        match names.address(&name) {
            Some(address) => {
                let answer = RData::A(A { address: address.into() });
                reply.answers.push(ResourceRecord::new(question.qname.clone(), CLASS::IN, ANSWER_SECONDS, answer));
            }
            None => *reply.rcode_mut() = RCODE::Refused,
        }
    }
    reply.build_bytes_vec().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_address() {
        let mut names = Names::default();
        let first = names.address("A.example.").unwrap();
        assert_eq!(names.address("a.example"), Some(first));
        assert_ne!(names.address("b.example"), Some(first));
        assert_eq!(names.name(first.into()), "a.example");
        assert_eq!(names.name("127.0.0.1".parse().unwrap()), "127.0.0.1");
        assert_eq!(names.name("::ffff:10.0.0.1".parse().unwrap()), "10.0.0.1");
        for n in 0..2 * NAMES_MAX {
            let _ = names.address(&format!("n{n}.example"));
        }
        assert_eq!(names.by_name.len(), NAMES_MAX);
    }
}
