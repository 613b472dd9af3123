//! Ids that sites make, and which site has made one.

use kofm_core::SiteId;

/// Whether it is the id of a lease, which no client can guess, or of a request that a site made.
pub fn is_given_id(id: &str) -> bool {
    home_of(id).is_some()
}

/// The site whose id this is, if it is one that a site has made.
pub fn home_of(id: &str) -> Option<SiteId> {
    let (home, _) = id.strip_prefix(['L', 'R'])?.split_once('-')?;
    home.parse().ok().map(SiteId)
}
