//! A program in a cell reaches us on a port of its own loopback, and nobody else does.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use actum_sandbox::{Access, Cell, Egress, Ended, Files, Grant, Listeners, Network, News, PROXY_PORT, Report, Rules};

use crate::desk::{Case, Desk, PROJECT, cell};

pub(crate) const ALL: &[Case] = &[
    ("a_cell_without_network_reaches_us_over_its_bridge", offline),
    ("a_bridge_stands_beside_the_way_out", beside_way_out),
    ("a_cell_in_the_machines_network_has_no_bridge", open),
    ("a_port_is_listened_on_once", taken),
    ("cells_have_bridges_on_the_same_port", same_port),
];

const PORT: u16 = 4100;

/// Says a word and hears one, as often as it is told.
fn asking(desk: &Desk, network: Network, script: &str) -> Cell {
    std::fs::create_dir_all(desk.path("own")).unwrap();
    let grant = Grant { path: PROJECT.into(), ..desk.elsewhere("own", PROJECT, Access::Write) };
    let mut cell = cell(&[grant], script);
    (cell.program[0], cell.network, cell.bridge) = ("bash".into(), network, Some(PORT));
    cell
}

fn ask() -> String {
    format!(
        "exec 3<>/dev/tcp/127.0.0.1/{PORT} || exit 9; echo from the cell >&3; read -r said <&3; test \"$said\" = 'from us'"
    )
}

/// Runs it; `served` gets what there is to listen on.
fn run(desk: &Desk, cell: Cell, mut served: impl FnMut(Listeners)) -> Report {
    let nothing = || File::options().read(true).write(true).open("/dev/null").unwrap().into();
    let files = Files { input: nothing(), output: nothing(), errors: nothing() };
    let mut running = desk.spawner.run(cell, files).unwrap();
    loop {
        match running.hear().unwrap() {
            News::Started => {}
            News::Listening(listeners) => served(listeners),
            News::Ended(report) => return report,
        }
    }
}

fn answer(bridge: &std::net::TcpListener) {
    let (stream, from) = bridge.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert!(from.ip().is_loopback());
    let mut said = String::new();
    BufReader::new(&stream).read_line(&mut said).unwrap();
    assert_eq!(said, "from the cell\n");
    (&stream).write_all(b"from us\n").unwrap();
}

fn offline(desk: &Desk) {
    let mut count = 0;
    let report = run(desk, asking(desk, Network::Off, &ask()), |listeners| {
        count += 1;
        assert!(listeners.way_out.is_empty());
        assert!(Egress::serve(listeners.way_out, Rules::default()).is_err());
        let bridge = listeners.bridge.unwrap();
        assert_eq!(bridge.local_addr().unwrap(), (Ipv4Addr::LOCALHOST, PORT).into());
        // On the machine nobody listens there.
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)).is_err());
        answer(&bridge);
    });
    assert_eq!((report.ended, count), (Ended::Exited(0), 1));
    // Without one there is nothing to be told of, and nobody at the port.
    let mut without = asking(desk, Network::Off, &ask());
    without.bridge = None;
    let report = run(desk, without, |listeners| panic!("{listeners:?}"));
    assert_eq!(report.ended, Ended::Exited(9));
}

fn beside_way_out(desk: &Desk) {
    // The way out is there as well: its proxy answers, though nobody may be reached.
    let script = format!(
        "{}; exec 4<>/dev/tcp/127.0.0.1/{PROXY_PORT} || exit 8; \
         printf 'CONNECT example.org:443 HTTP/1.1\\r\\nHost: example.org:443\\r\\n\\r\\n' >&4; \
         read -r said <&4; case \"$said\" in HTTP/1.1\\ 403*) ;; *) exit 7;; esac",
        ask()
    );
    let mut egress = None;
    let report = run(desk, asking(desk, Network::Listened { ports: vec![80, 443] }, &script), |listeners| {
        assert_eq!(listeners.way_out.len(), 4);
        egress = Some(Egress::serve(listeners.way_out, Rules { bytes_max: 1 << 20, ..Rules::default() }).unwrap());
        answer(&listeners.bridge.unwrap());
    });
    assert_eq!(report.ended, Ended::Exited(0));
    let log = egress.unwrap().end();
    assert!(log.decisions.iter().any(|decision| decision.host == "example.org" && !decision.allowed), "{log:?}");
    // A way out without a bridge is what it was.
    let mut without = asking(desk, Network::Listened { ports: vec![80] }, "true");
    without.bridge = None;
    let report = run(desk, without, |listeners| {
        assert_eq!((listeners.bridge.is_none(), listeners.way_out.len()), (true, 3));
    });
    assert_eq!(report.ended, Ended::Exited(0));
}

fn open(desk: &Desk) {
    let report = run(desk, asking(desk, Network::Open, "true"), |listeners| panic!("{listeners:?}"));
    assert_eq!(report.ended, Ended::Exited(0));
}

fn taken(desk: &Desk) {
    let cell = asking(desk, Network::Listened { ports: vec![PORT] }, "true");
    let report = run(desk, cell, |listeners| panic!("{listeners:?}"));
    assert!(matches!(&report.ended, Ended::NotBuilt(why) if why.contains("cannot listen")), "{report:?}");
}

/// Each hears its own cell only.
fn same_port(desk: &Desk) {
    std::thread::scope(|scope| {
        let one = || {
            let report = run(desk, asking(desk, Network::Off, &ask()), |listeners| answer(&listeners.bridge.unwrap()));
            assert_eq!(report.ended, Ended::Exited(0));
        };
        for _ in 0..4 {
            std::thread::Builder::new().spawn_scoped(scope, one).unwrap();
        }
    });
}
