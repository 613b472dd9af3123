//! Request sets from a file: a line for each site, with the sites that it asks.

use kofm_core::SiteId;

use crate::exit::Exit;

/// The largest file that is read.
const FILE_LIMIT: u64 = 1 << 20;

/// Reads the sets; the error names the line that is not a set.
pub(crate) fn read(path: &str) -> Result<Vec<Vec<SiteId>>, Exit> {
    let wrong = |problem: String| Exit::usage(format!("--sets {path}: {problem}"));
    let size = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
    if size > FILE_LIMIT {
        return Err(wrong(format!("{size} bytes, more than the {FILE_LIMIT} that are read")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    parse(&text).map_err(wrong)
}

fn parse(text: &str) -> Result<Vec<Vec<SiteId>>, String> {
    let mut sets = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let words = line.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        let site = |word: &str| {
            word.parse().map(SiteId).map_err(|_| {
                format!("line {number}: `{word}` is not a site: write their numbers, as in 0 1 3")
            })
        };
        let set: Vec<SiteId> = words.map(site).collect::<Result<_, _>>()?;
        if !set.is_empty() {
            sets.push(set);
        }
    }
    Ok(sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sets_and_a_bad_one_is_named() {
        let sites = |list: &[u16]| list.iter().copied().map(SiteId).collect::<Vec<_>>();
        let text = "# who asks whom\n0 1 3\n\n1,2 # the second\n";
        assert_eq!(parse(text).unwrap(), [sites(&[0, 1, 3]), sites(&[1, 2])]);
        assert!(parse("0 1\n0 x\n").unwrap_err().starts_with("line 2: `x` is not a site"));
        assert!(parse("0 70000\n").unwrap_err().contains("`70000`"));
    }
}
