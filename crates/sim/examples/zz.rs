use kofm_core::protocols::roaming::{Roaming, Message};
use kofm_core::{Cluster, Effect};
use kofm_sim::{seeded::{Setup, run, Observer}, span::Span, trace::Step};
#[derive(Default)]
struct C { first: u64, fwd: u64, give: u64, units: u64, grants: u64, local: u64, print: u64, at: u64, st: Vec<(u8, u16)>, acc: [u64; 4], waiting: Vec<i64>, held: std::collections::BTreeMap<kofm_core::Stamp, Vec<u32>>, wclaims: std::collections::BTreeMap<kofm_core::Stamp, u32> }
impl Observer<Roaming> for C {
    const STEPS: bool = true;
    fn step(&mut self, step: Step<Message, ()>) {
        let now = step.at.unwrap();
        let dt = now - self.at; self.at = now;
        for &(st, site) in &self.st { let k = match st { 0 => if self.waiting[site as usize] > 0 { 3 } else { 0 }, x => x }; self.acc[k as usize] += dt; }
        if let Ok(f) = std::env::var("F") { let t = format!("{step:?}"); if t.contains(&f) { println!("{:.1} {} {}", now as f64 / 1e6, step.site, t.split_once("input:").unwrap().1); } }
        if let kofm_core::Input::Claim { claim, .. } = &step.input { self.wclaims.insert(*claim, (now / 1_000_000) as u32); }
        for e in &step.effects { if let Effect::Grant { claim, .. } = e { let w = (now / 1_000_000) as u32 - self.wclaims[claim]; if w > 40 && std::env::var("L").is_ok() { println!("LONG {claim} {w} since {}", self.wclaims[claim]); } } }
        match &step.input {
            kofm_core::Input::Claim { claim, .. } => { self.waiting[claim.site.index()] += 1; }
            kofm_core::Input::Release { claim, .. } => { for u in self.held.remove(claim).unwrap() { self.st[u as usize] = (0, claim.site.0); } }
            kofm_core::Input::Deliver { message, .. } => for p in &message.parts { for u in &p.units { self.st[u.0 as usize] = (0, step.site.0); } }
            _ => {}
        }
        for e in &step.effects {
            match e {
                Effect::Send { message, .. } => for p in &message.parts { for u in &p.units { self.st[u.0 as usize] = (1, 0); } },
                Effect::Grant { claim, units, .. } => { self.waiting[claim.site.index()] -= 1; for u in units { self.st[u.number as usize] = (2, 0); } self.held.insert(*claim, units.iter().map(|u| u.number).collect()); }
                _ => {}
            }
        }
        for e in &step.effects {
            match e {
                Effect::Send { message, .. } => {
                    for p in &message.parts {
                        self.units += p.units.len() as u64;
                        if !p.units.is_empty() { self.give += 1 } 
                        else if p.asks.iter().any(|a| a.claim.site == step.site) { self.first += 1 }
                        else { self.fwd += 1 }
                    }
                }
                Effect::Grant { .. } => { self.grants += 1; }
                _ => {}
            }
        }
        if self.print > 0 && self.grants > 2000 { self.print -= 1; println!("{step:?}"); }
    }
    fn progress(&mut self, _: u64) {}
}
fn main() {
    let a: Vec<f64> = std::env::args().skip(1).map(|s| s.parse().unwrap()).collect();
    let (n, m, c, rho) = (a[0] as u16, a[1] as u32, a[2], a[3]);
    let mut s = Setup::new(Cluster::new(n, m));
    s.k = (1, 2.min(m));
    let mean = f64::from(1 + s.k.1) / 2.0;
    s.requests = 6000; s.clients = c as u32; s.hold = Span::Exponential(5.0);
    s.think = Span::Exponential(c * n as f64 * 5.0 * mean / (rho * m as f64));
    let mut c = C { print: a.get(4).copied().unwrap_or(0.0) as u64, st: (0..m).map(|u| (0, (u % n as u32) as u16)).collect(), waiting: vec![0; n as usize], ..C::default() };
    let r = run::<Roaming, _>(&s, &mut c);
    let g = c.grants as f64;
    let t: u64 = c.acc.iter().sum();
    println!("spare {:.2} flight {:.2} used {:.2} reserved {:.2}", c.acc[0] as f64/t as f64, c.acc[1] as f64/t as f64, c.acc[2] as f64/t as f64, c.acc[3] as f64/t as f64);
    println!("first {:.2} fwd {:.2} give {:.2} units {:.2} wait {:.2} total {:.2}", c.first as f64/g, c.fwd as f64/g, c.give as f64/g, c.units as f64/g, r.wait_mean(), r.messages_per_grant().mean);
}
