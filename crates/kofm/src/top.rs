//! `kofm top`: pools, queue, leases and sites, live in the terminal, or as text without one.

mod data;
mod grid;
mod grids;
mod screen;

use std::io::{IsTerminal, stdout};
use std::time::Duration;

use clap::Args;
use kofm_net::client::Client;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use self::data::{Data, Subject};
use self::screen::{Next, Screen};
use crate::ask::Server;
use crate::exit::{Exit, SYSTEM};
use crate::output::say;

/// Lines of each list if the output is text.
const LINES: usize = 15;
/// Keys and sizes that wait for the screen.
const EVENTS: usize = 64;
/// The pause between two calls of the thread that reads keys.
const KEYS_EVERY: Duration = Duration::from_millis(100);

const KEYS: &str = "\
Keys: Tab, Left, Right or 1 to 7 choose a list; Up, Down, PageUp, PageDown, Home
and End move; Enter shows the units of a pool or the blockers of a request;
Esc goes back; / filters; s chooses the column to sort by, r reverses; q quits.

If standard output is not a terminal, the lists are printed as text every
--every, without colours.

Examples:
  kofm top
  kofm top --once                 # one table of each list, for scripts and logs
  kofm top --every 5s > top.txt";

#[derive(Debug, Args)]
#[command(after_help = KEYS)]
pub(crate) struct Top {
    /// Time between two refreshes, at least 100ms
    #[arg(long, default_value = "1s", value_parser = kofm_net::duration::parse)]
    every: Duration,
    /// Print the lists once, as text
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    server: Server,
}

impl Top {
    pub(crate) fn run(self) -> Result<(), Exit> {
        let every = self.every.max(Duration::from_millis(100));
        let screen = !self.once && stdout().is_terminal();
        let addr = self.server.addr.clone();
        self.server.with(async |client| {
            let mut stop = Stop::new()?;
            if screen {
                return live(client, &addr, every, &mut stop).await;
            }
            loop {
                say(&data::text(&client, LINES).await?);
                if self.once {
                    return Ok(());
                }
                tokio::select! {
                    () = tokio::time::sleep(every) => say("\n"),
                    () = stop.wait() => return Ok(()),
                }
            }
        })
    }
}

/// The signals that end the program. They are caught, so that the terminal is restored.
struct Stop([Signal; 4]);

impl Stop {
    fn new() -> std::io::Result<Self> {
        Ok(Self([
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            signal(SignalKind::hangup())?,
            signal(SignalKind::quit())?,
        ]))
    }

    async fn wait(&mut self) {
        let [terminate, interrupt, hangup, quit] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
            _ = quit.recv() => {}
        }
    }
}

/// Restores the terminal when it goes out of scope; a panic restores it, too, by the hook that
/// `ratatui` installs.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        // The terminal may be gone, after SIGHUP.
        drop(ratatui::try_restore());
    }
}

async fn live(client: Client, addr: &str, every: Duration, stop: &mut Stop) -> Result<(), Exit> {
    // The first answer comes before the screen, so that a wrong address is an ordinary error.
    let first = data::fetch(&client, &Subject::Pools).await?;
    let _restore = Restore;
    let mut terminal = ratatui::try_init().map_err(|error| {
        let text = format!("cannot use the terminal: {error}; `kofm top --once` prints text");
        Exit::new(SYSTEM, text)
    })?;
    let (wanted, asked) = watch::channel(Subject::Pools);
    let (answers, mut answered) = mpsc::channel(1);
    let reader = tokio::spawn(refresh(client, asked, every, answers));
    let mut keys = read_keys();
    let mut screen = Screen::new(addr);
    // A test presses `!` to see that a panic restores the terminal.
    let fault = std::env::var_os("KOFM_TEST_FAULTS").map(|_| KeyCode::Char('!'));
    screen.update(Ok(first));
    let result = loop {
        if let Err(error) = draw(&mut terminal, &mut screen) {
            break Err(Exit::new(SYSTEM, format!("cannot write to the terminal: {error}")));
        }
        tokio::select! {
            () = stop.wait() => break Ok(()),
            Some(answer) = answered.recv() => screen.update(answer),
            key = keys.recv() => match key {
                Some(Event::Key(key)) if Some(key.code) == fault => panic!("a panic for tests"),
                Some(Event::Key(key)) => match screen.press(key) {
                    Next::Quit => break Ok(()),
                    Next::Stay => {}
                    Next::Show(subject) => drop(wanted.send(subject)),
                },
                Some(_) => {}
                None => break Err(Exit::new(SYSTEM, "the terminal has been closed")),
            }
        }
    };
    reader.abort();
    result
}

fn draw(terminal: &mut DefaultTerminal, screen: &mut Screen) -> std::io::Result<()> {
    terminal.draw(|frame| screen.draw(frame)).map(|_| ())
}

/// Reads the subject again every so often, and at once when it changes.
async fn refresh(
    client: Client,
    mut asked: watch::Receiver<Subject>,
    every: Duration,
    answers: mpsc::Sender<Result<Data, String>>,
) {
    loop {
        let subject = asked.borrow_and_update().clone();
        let data = data::fetch(&client, &subject).await.map_err(|exit| exit.message);
        // A newer subject makes the answer to the one before useless.
        if !asked.has_changed().unwrap_or(false) && answers.send(data).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            changed = asked.changed() => if changed.is_err() { return; },
        }
    }
}

/// Keys and changes of size, read by a thread of their own, which ends with its reader.
fn read_keys() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(EVENTS);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            match event::poll(KEYS_EVERY) {
                Ok(false) => {}
                Ok(true) => match event::read() {
                    Ok(event) => drop(sender.blocking_send(event)),
                    Err(_) => return,
                },
                Err(_) => return,
            }
        }
    });
    receiver
}
