//! Keeps the site's right to grant: beats in the store, and offers it new epochs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::boottime::{Boottime, Moment};
use crate::store::{Beat, Pulse, Record, Store, Swap};
pub(super) use kofm_site::keeper::{News, Note, Standing};

/// Beats until the site is gone.
pub(crate) async fn beat(
    store: Arc<dyn Store>,
    site: String,
    lease: Duration,
    mut me: watch::Receiver<Standing>,
    news: mpsc::Sender<News>,
) {
    let (mut incarnation, mut count) = (0, 0);
    loop {
        let now = me.borrow_and_update().clone();
        if now.incarnation != incarnation {
            (incarnation, count) = (now.incarnation, 0);
        }
        let pulse = Pulse { site: site.clone(), incarnation, count, note: now.note };
        let began = Moment::now();
        let event = match store.beat(now.record, pulse, now.listens).await {
            Ok(Beat::Steady(pulses)) => {
                count += 1;
                News::Beat { began, pulses }
            }
            Ok(Beat::Moved(record)) => News::Decided(record),
            Err(error) => News::Trouble(error.to_string()),
        };
        let again = matches!(event, News::Decided(_));
        if news.send(event).await.is_err() {
            return;
        }
        // The site has to take note of the epoch before the next beat can succeed.
        let pause = if again || now.hurry { lease / 20 } else { lease / store.pace() };
        tokio::select! {
            () = sleep(pause) => {}
            changed = me.changed() => if changed.is_err() { return },
        }
    }
}

/// Offers records to the store until the site is gone.
pub(crate) async fn propose(
    store: Arc<dyn Store>,
    mut records: mpsc::Receiver<Record>,
    news: mpsc::Sender<News>,
) {
    while let Some(mut record) = records.recv().await {
        // Only the newest counts.
        while let Ok(newer) = records.try_recv() {
            record = newer;
        }
        let event = match store.swap(record.clone()).await {
            Ok(Swap::Done) => News::Decided(record),
            Ok(Swap::Lost(other)) => News::Decided(other),
            Err(error) => News::Trouble(error.to_string()),
        };
        if news.send(event).await.is_err() {
            return;
        }
    }
}
