//! `kofm bench`: measure a cluster.
//!
//! Servers run in processes of their own. Each row is measured twice: with all clients as fast as
//! they can (pairs per second), then open loop at seven tenths of that rate, where the latency of a
//! pair counts from the moment when it was due, not from when a client got round to it.
//!
//! A pair is an acquire that is granted, and the release of what it got. The release is sent when
//! the guard is dropped, and nobody waits for its answer: it travels with the client's next
//! acquire, whose answer comes after the release is done, because a site does the calls of a
//! connection in their order. The last release of each client is waited for before the time of a
//! measurement is taken, so a rate counts nothing unfinished; a latency is the acquire's. With
//! `--confirm`, and always over HTTP, clients wait for the site's word on every release: then a
//! pair takes two round trips, and the latency is that of both.
//!
//! A hand-over is what passes between the release of a unit at one site and its grant to a client
//! that waits for it at another.
//!
//! With `--against`, other programs are measured beside kofm: see [`against`].

mod against;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use kofm_net::FastClient;
use kofm_net::api::{State, Submit};
use kofm_net::client::{Address, Client};
use kofm_net::config::protocol_named;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use self::against::{Against, Cell, System};
use crate::exit::{Exit, SYSTEM};
use crate::output::{say, say_line, tell};
use crate::tables::{print_json, table};

/// Numbers of clients, unless they are given.
const CLIENTS: [usize; 4] = [1, 8, 32, 256];
/// The open loop runs at this part of the closed loop's rate.
const LOAD: f64 = 0.7;
/// Between two hand-overs, and between the echoes that they are compared with.
const PAUSE: Duration = Duration::from_millis(3);
/// Bytes of an echo: about what a request is.
const ECHO: usize = 64;

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Numbers of clients, with commas between them [default: 1,8,32,256; 1,8,32 with --against]
    #[arg(long, value_delimiter = ',')]
    clients: Vec<usize>,
    /// Numbers of sites
    #[arg(long, value_delimiter = ',', default_values_t = [1, 3])]
    sites: Vec<usize>,
    /// Protocols [default: the default one]
    #[arg(long, value_delimiter = ',')]
    protocol: Vec<String>,
    /// Number of units
    #[arg(long, value_enum, value_delimiter = ',',
          default_values_t = [Units::Plenty, Units::Half, Units::One])]
    units: Vec<Units>,
    /// Protocol of the clients
    #[arg(long, value_enum, default_value_t = Via::Fast)]
    via: Via,
    /// Wait for the site's answer to every release before the next acquire
    ///
    /// Otherwise a release is sent without waiting, and travels with the client's next acquire;
    /// the site does it first. The last ones are waited for before the time is taken, and the
    /// latency of a pair is that of its acquire. Over HTTP every release is confirmed.
    #[arg(long)]
    confirm: bool,
    /// Clients share one connection per site, as the tasks of one program do
    #[arg(long)]
    shared: bool,
    /// Time of each measurement
    #[arg(long, default_value = "2s", value_parser = kofm_net::duration::parse)]
    time: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Measure other programs and kofm side by side
    ///
    /// Starts the programs that are installed, with their data in a temporary folder, and measures
    /// the same cells at each of them. A program that is named must be installed.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 0..=1, default_missing_value = "all",
          conflicts_with_all = ["sites", "protocol", "units", "via", "confirm", "shared"])]
    against: Option<Vec<System>>,
    /// Cells of --against [default: all]
    #[arg(long, value_enum, value_delimiter = ',', requires = "against")]
    cells: Vec<Cell>,
    /// How often --against measures each cell; it shows the median
    #[arg(long, default_value_t = 1, requires = "against")]
    rounds: usize,
    /// Write a picture of the rates of --against, SVG
    #[arg(long, value_name = "FILE", requires = "against")]
    plot: Option<PathBuf>,
    /// Serve the semaphores of the floor, for the comparison
    #[arg(long, hide = true)]
    floor: bool,
    /// Answer echoes, for the comparison
    #[arg(long, hide = true)]
    echo: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Units {
    /// One for each client
    Plenty,
    /// One for two clients
    Half,
    /// One for all
    One,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Via {
    /// JSON over HTTP
    Http,
    /// Frames on an upgraded connection
    Fast,
}

#[derive(Debug, Serialize)]
struct Report {
    /// Clients waited for the answer to every release, not only to the last.
    confirmed: bool,
    echo: Vec<Row>,
    pairs: Vec<Row>,
    handover: Vec<Handover>,
}

/// From a release at one site to the grant at another, as their clients see it.
#[derive(Debug, Serialize)]
struct Handover {
    protocol: String,
    sites: usize,
    samples: usize,
    /// Half of an echo.
    one_way_us: f64,
    p50_us: u64,
    p99_us: u64,
    /// The median in one-way times, without the two between clients and sites.
    between_sites: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    sites: usize,
    clients: usize,
    protocol: String,
    units: Option<Units>,
    /// Acquire and release, or one echo.
    per_second: f64,
    /// Pairs, as a part of what two echoes per pair allow.
    of_echo: Option<f64>,
    latency_us: Latency,
}

#[derive(Debug, Default, Serialize)]
struct Latency {
    rate: f64,
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

impl Bench {
    pub(crate) fn run(mut self) -> Result<(), Exit> {
        // As many threads as a site has: echo, sites and clients are all alike in that.
        let runtime = crate::serve::runtime()?;
        if self.echo {
            return runtime.block_on(echo_server());
        }
        if self.floor {
            return Ok(runtime.block_on(against::floor())?);
        }
        if let Some(systems) = self.against {
            let (clients, cells, rounds) = (self.clients, self.cells, self.rounds);
            let (time, json, plot) = (self.time, self.json, self.plot);
            let against = Against { systems, clients, cells, rounds, time, json, plot };
            // A signal ends the servers, too.
            return runtime.block_on(async {
                tokio::select! {
                    ended = against.run() => ended,
                    stopped = crate::serve::stop_signal() => {
                        stopped?;
                        Err(Exit::new(130, "stopped"))
                    }
                }
            });
        }
        if self.clients.is_empty() {
            self.clients = CLIENTS.to_vec();
        }
        self.check()?;
        let report = runtime.block_on(self.measure())?;
        if self.json {
            return print_json(&report);
        }
        say(&show(&report));
        Ok(())
    }

    /// A slip is told before the first minutes are spent.
    fn check(&self) -> Result<(), Exit> {
        for (what, numbers, most) in
            [("--sites", &self.sites, 100), ("--clients", &self.clients, 10_000)]
        {
            if let Some(number) = numbers.iter().find(|number| !(1..=most).contains(*number)) {
                return Err(Exit::usage(format!("{what} {number}: write 1 to {most}")));
            }
        }
        for name in &self.protocol {
            protocol_named(name).map_err(|text| Exit::usage(format!("--protocol: {text}")))?;
        }
        let text = "--time 0 leaves no time to measure in";
        if self.time.is_zero() { Err(Exit::usage(text)) } else { Ok(()) }
    }

    async fn measure(&self) -> Result<Report, Exit> {
        let confirmed = self.confirm || self.via == Via::Http;
        let (echo, pairs, handover) = (Vec::new(), Vec::new(), Vec::new());
        let mut report = Report { confirmed, echo, pairs, handover };
        let echo = Server::start(&["bench", "--echo"], 1)?;
        for &clients in &self.clients {
            tell(&format!("echo, {clients} clients"));
            let makers = (0..clients).map(|_| Echo { address: echo.addresses[0].clone() });
            let (per_second, latency_us) = measure(makers.collect(), self.time).await?;
            let (protocol, units, of_echo) = ("tcp".to_owned(), None, None);
            report.echo.push(Row {
                sites: 1,
                clients,
                protocol,
                units,
                per_second,
                of_echo,
                latency_us,
            });
        }
        let one_way = self.lone_echo(&echo.addresses[0]).await? / 2.0;
        drop(echo);
        let default = kofm_net::config::default_protocol().name().to_owned();
        let protocols =
            if self.protocol.is_empty() { vec![default] } else { self.protocol.clone() };
        for protocol in &protocols {
            for &sites in &self.sites {
                for (&clients, echo) in self.clients.iter().zip(&report.echo) {
                    for &units in &self.units {
                        let echo = echo.per_second;
                        let row = self.pairs(protocol, sites, clients, units, echo).await?;
                        report.pairs.push(row);
                    }
                }
                if sites > 1 {
                    let handover = self.handover(protocol, sites, one_way).await?;
                    report.handover.push(handover);
                }
            }
        }
        Ok(report)
    }

    async fn pairs(
        &self,
        protocol: &str,
        sites: usize,
        clients: usize,
        units: Units,
        echo: f64,
    ) -> Result<Row, Exit> {
        tell(&format!("{protocol}, {sites} sites, {clients} clients, {units:?}"));
        let count = match units {
            Units::Plenty => clients.max(sites),
            Units::Half => clients.div_ceil(2),
            Units::One => 1,
        };
        let (sites_arg, pool) = (sites.to_string(), format!("bench={count}"));
        let args = ["up", "--http", "127.0.0.1:0", "--protocol", protocol];
        let args = [&args[..], &["--sites", &sites_arg, "--pool", &pool]].concat();
        let server = Server::start(&args, sites)?;
        let address = |number: usize| server.addresses[number % sites].clone();
        let (per_second, latency_us) = if self.via == Via::Http {
            let makers = (0..clients).map(|number| Pair { address: address(number) });
            measure(makers.collect(), self.time).await?
        } else {
            let mut shared = Vec::new();
            for number in 0..if self.shared { sites.min(clients) } else { 0 } {
                shared.push(fast(&address(number)).await?);
            }
            let makers = (0..clients).map(|number| FastPair {
                address: address(number),
                shared: shared.get(number % sites).cloned(),
                confirm: self.confirm,
            });
            measure(makers.collect(), self.time).await?
        };
        Ok(Row {
            sites,
            clients,
            protocol: protocol.to_owned(),
            units: Some(units),
            per_second,
            of_echo: Some(per_second / (echo / 2.0)),
            latency_us,
        })
    }
}

impl Bench {
    /// The median time of an echo to somebody who was asleep, as those are who wait for a unit.
    async fn lone_echo(&self, address: &str) -> Result<f64, Exit> {
        let mut client = Echo { address: address.to_owned() }.connect().await?;
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < self.time {
            tokio::time::sleep(PAUSE).await;
            let sent = Instant::now();
            Echo::once(&mut client).await?;
            times.push(sent.elapsed());
        }
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        Ok(median.as_secs_f64() * 1e6)
    }

    /// Two clients at two sites take one unit from each other.
    async fn handover(&self, protocol: &str, sites: usize, one_way: f64) -> Result<Handover, Exit> {
        tell(&format!("{protocol}, {sites} sites, hand-over"));
        let count = sites.to_string();
        let args = ["up", "--http", "127.0.0.1:0", "--protocol", protocol, "--pool", "bench=1"];
        let server = Server::start(&[&args[..], &["--sites", &count]].concat(), sites)?;
        let spec = Submit { want: [("bench".to_owned(), 1)].into(), ..Submit::default() };
        let mut holder = fast(&server.addresses[0]).await?;
        let mut next = fast(&server.addresses[1]).await?;
        let mut guard = holder.acquire(&spec).await?;
        let (start, mut times) = (Instant::now(), Vec::new());
        while start.elapsed() < self.time {
            let (client, spec) = (next.clone(), spec.clone());
            let waiting = tokio::spawn(async move {
                let guard = client.acquire(&spec).await;
                (Instant::now(), guard)
            });
            // Long enough for the claim to be known everywhere.
            tokio::time::sleep(PAUSE).await;
            let released = Instant::now();
            guard.release().await?;
            let (granted, given) =
                waiting.await.map_err(|error| Exit::new(SYSTEM, error.to_string()))?;
            guard = given?;
            let time = granted.saturating_duration_since(released);
            times.push(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
            std::mem::swap(&mut holder, &mut next);
        }
        times.sort_unstable();
        let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let between_sites = at(50) as f64 / one_way - 2.0;
        Ok(Handover {
            protocol: protocol.to_owned(),
            sites,
            samples: times.len(),
            one_way_us: one_way,
            p50_us: at(50),
            p99_us: at(99),
            between_sites,
        })
    }
}

/// A server process that ends with this value.
struct Server {
    child: Child,
    addresses: Vec<String>,
}

impl Server {
    fn start(args: &[&str], addresses: usize) -> Result<Self, Exit> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .stdin(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| Exit::new(SYSTEM, "no output"))?;
        let mut server = Self { child, addresses: Vec::new() };
        let lines = BufReader::new(stdout).lines();
        for line in lines.take(addresses) {
            let line = line?;
            server.addresses.push(line.split(' ').next_back().unwrap_or_default().to_owned());
        }
        if server.addresses.len() < addresses {
            return Err(Exit::new(SYSTEM, "the server did not start"));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Something that a client does again and again.
trait Work: Send + 'static {
    type Client: Send;
    fn connect(&self) -> impl Future<Output = Result<Self::Client, Exit>> + Send;
    fn once(client: &mut Self::Client) -> impl Future<Output = Result<(), Exit>> + Send;
    /// Does it for the last time: nothing of this client's work is unfinished afterwards.
    fn last(client: &mut Self::Client) -> impl Future<Output = Result<(), Exit>> + Send {
        Self::once(client)
    }
}

struct Echo {
    address: String,
}

impl Work for Echo {
    type Client = TcpStream;

    async fn connect(&self) -> Result<TcpStream, Exit> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn once(client: &mut TcpStream) -> Result<(), Exit> {
        let mut buffer = [7; ECHO];
        client.write_all(&buffer).await?;
        client.read_exact(&mut buffer).await?;
        Ok(())
    }
}

struct Pair {
    address: String,
}

impl Work for Pair {
    type Client = (Client, Submit);

    async fn connect(&self) -> Result<Self::Client, Exit> {
        let address = Address::parse(&self.address).map_err(|text| Exit::new(SYSTEM, text))?;
        let spec = Submit { want: [("bench".to_owned(), 1)].into(), ..Submit::default() };
        Ok((Client::new(address, None), spec))
    }

    async fn once((client, spec): &mut Self::Client) -> Result<(), Exit> {
        let request = client.wait(client.submit(spec).await?).await?;
        let lease = request.lease.filter(|_| request.state == State::Granted);
        let lease = lease.ok_or_else(|| Exit::new(SYSTEM, "not granted"))?;
        client.release(&lease.id).await?;
        Ok(())
    }
}

struct FastPair {
    address: String,
    shared: Option<FastClient>,
    confirm: bool,
}

struct FastWorker {
    client: FastClient,
    spec: Submit,
    confirm: bool,
}

async fn fast(address: &str) -> Result<FastClient, Exit> {
    let address = Address::parse(address).map_err(|text| Exit::new(SYSTEM, text))?;
    Ok(Client::new(address, None).fast().await?)
}

impl Work for FastPair {
    type Client = FastWorker;

    async fn connect(&self) -> Result<Self::Client, Exit> {
        let spec = Submit { want: [("bench".to_owned(), 1)].into(), ..Submit::default() };
        let client = match &self.shared {
            Some(client) => client.clone(),
            None => fast(&self.address).await?,
        };
        Ok(FastWorker { client, spec, confirm: self.confirm })
    }

    async fn once(worker: &mut Self::Client) -> Result<(), Exit> {
        let guard = worker.client.acquire(&worker.spec).await?;
        if worker.confirm {
            guard.release().await?;
        }
        Ok(())
    }

    async fn last(worker: &mut Self::Client) -> Result<(), Exit> {
        // A site does the calls of a connection in order: all earlier releases are done, too.
        worker.client.acquire(&worker.spec).await?.release().await?;
        Ok(())
    }
}

/// Pairs per second as fast as it goes, then latencies at a part of that.
async fn measure<W: Work>(works: Vec<W>, time: Duration) -> Result<(f64, Latency), Exit> {
    let mut clients = Vec::new();
    for work in &works {
        let mut client = work.connect().await?;
        W::once(&mut client).await?;
        clients.push(client);
    }
    let count = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for mut client in clients {
        let count = Arc::clone(&count);
        tasks.spawn(async move {
            while start.elapsed() < time {
                W::once(&mut client).await?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            W::last(&mut client).await?;
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Exit>(client)
        });
    }
    let mut clients = Vec::new();
    while let Some(done) = tasks.join_next().await {
        clients.push(done.map_err(|error| Exit::new(SYSTEM, error.to_string()))??);
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = count.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
    let latency = open_loop::<W>(clients, rate * LOAD, time).await?;
    Ok((rate, latency))
}

/// Work is due at fixed moments; whoever is free does the next piece. Lateness counts.
async fn open_loop<W: Work>(
    clients: Vec<W::Client>,
    rate: f64,
    time: Duration,
) -> Result<Latency, Exit> {
    let start = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let gap = Duration::from_secs_f64(1.0 / rate.max(1.0));
    let mut tasks: JoinSet<Result<Vec<u64>, Exit>> = JoinSet::new();
    for mut client in clients {
        let next = Arc::clone(&next);
        tasks.spawn(async move {
            let mut times = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let due = gap.mul_f64(u32::try_from(number).map_or(f64::MAX, f64::from));
                if due >= time {
                    return Ok(times);
                }
                let due = start + due;
                // Timers are coarse: the last part of the way is yielded, not slept.
                let early = due.saturating_duration_since(Instant::now());
                if early > Duration::from_millis(2) {
                    tokio::time::sleep(early.saturating_sub(Duration::from_millis(1))).await;
                }
                while Instant::now() < due {
                    tokio::task::yield_now().await;
                }
                W::once(&mut client).await?;
                times.push(u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX));
            }
        });
    }
    let mut times = Vec::new();
    while let Some(done) = tasks.join_next().await {
        times.extend(done.map_err(|error| Exit::new(SYSTEM, error.to_string()))??);
    }
    times.sort_unstable();
    let at = |part: usize| {
        let place = (times.len() * part / 1000).min(times.len().saturating_sub(1));
        times.get(place).copied().unwrap_or(0)
    };
    Ok(Latency { rate, p50: at(500), p90: at(900), p99: at(990), p999: at(999), max: at(1000) })
}

async fn echo_server() -> Result<(), Exit> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    say_line(&format!("echo {}", listener.local_addr()?));
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut buffer = [0; ECHO];
            while stream.read_exact(&mut buffer).await.is_ok() {
                if stream.write_all(&buffer).await.is_err() {
                    return;
                }
            }
        });
    }
}

fn show(report: &Report) -> String {
    let rows = report.echo.iter().chain(&report.pairs).map(|row| {
        vec![
            row.protocol.clone(),
            row.sites.to_string(),
            row.clients.to_string(),
            row.units.map_or_else(|| "echo".into(), |units| format!("{units:?}").to_lowercase()),
            format!("{:.0}", row.per_second),
            row.of_echo.map_or(String::new(), |part| format!("{part:.2}")),
            format!("{:.0}", row.latency_us.rate),
            row.latency_us.p50.to_string(),
            row.latency_us.p99.to_string(),
            row.latency_us.p999.to_string(),
            row.latency_us.max.to_string(),
        ]
    });
    let head = [
        "PROTOCOL", "SITES", "CLIENTS", "UNITS", "PER S", "OF ECHO", "AT RATE", "P50 us", "P99 us",
        "P99.9", "MAX",
    ];
    let releases = if report.confirmed {
        "Clients waited for the answer to every release."
    } else {
        "A release travels with the client's next acquire and is done before it: a pair takes one \
         round trip.\nOF ECHO compares it with two, all the same; see --confirm."
    };
    let pairs = format!("{}{releases}\n", table(&head, rows));
    if report.handover.is_empty() {
        return pairs;
    }
    let rows = report.handover.iter().map(|row| {
        vec![
            row.protocol.clone(),
            row.sites.to_string(),
            row.p50_us.to_string(),
            row.p99_us.to_string(),
            format!("{:.1}", row.one_way_us),
            format!("{:.1}", row.between_sites),
        ]
    });
    let head = ["PROTOCOL", "SITES", "HAND-OVER P50 us", "P99 us", "ONE WAY us", "BETWEEN SITES"];
    format!("{pairs}\n{}", table(&head, rows))
}
