//! Nobody waits beside free units: the promise of protocols that say where idle units are.
//!
//! Holders may keep their units for days. So the oldest claim must get units that lie idle where
//! nobody needs them, whomever it was sent to wait for. What is at its own site for a demand over
//! several pools may be reserved. It is judged where no message is on its way.

use std::collections::BTreeMap;

use kofm_core::{Demand, PoolId, Stamp, Unit};

/// What one site has idle, and who waits there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stock {
    pub(crate) idle: Vec<Unit>,
    pub(crate) waiting: Vec<(Stamp, Demand)>,
    /// Whether a timer is armed: something will happen yet.
    pub(crate) armed: bool,
}

impl Stock {
    fn needs(&self, pool: PoolId) -> bool {
        self.waiting.iter().any(|(_, demand)| demand.units(pool).0 > 0)
    }

    /// Whether a claim other than this one may have taken units, while it waits for others.
    fn reserves(&self, pool: PoolId, but: Stamp) -> bool {
        let others = self.waiting.iter().filter(|(claim, _)| *claim != but);
        let mut demands = others.map(|(_, demand)| demand);
        demands.any(|demand| demand.units(pool).0 > 0 && demand.parts().count() > 1)
    }
}

/// The oldest claim, if units lie idle that would serve it.
pub(crate) fn overlooked<'a>(stocks: impl Iterator<Item = &'a Stock> + Clone) -> Option<Stamp> {
    if stocks.clone().any(|stock| stock.armed) {
        return None;
    }
    let claims = stocks.clone().flat_map(|stock| stock.waiting.iter().map(move |it| (it, stock)));
    let ((oldest, demand), home) = claims.min_by_key(|((claim, _), _)| *claim)?;
    let mut spare: BTreeMap<PoolId, u32> = BTreeMap::new();
    for stock in stocks {
        let here = std::ptr::eq(stock, home);
        for unit in &stock.idle {
            let free =
                if here { !stock.reserves(unit.pool, *oldest) } else { !stock.needs(unit.pool) };
            if free {
                *spare.entry(unit.pool).or_default() += 1;
            }
        }
    }
    let served =
        demand.parts().all(|(pool, units)| spare.get(&pool).is_some_and(|&n| n >= units.0));
    served.then_some(*oldest)
}
