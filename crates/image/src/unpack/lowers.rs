//! What the layers below have on the way that the layer in the making takes.

use rustix::io::Result;

use crate::stack::{Entered, Merged, Stack};

/// The layers below, and the way into them that was taken last: what lies further on it is found from there, and
/// not from the root of each.
pub(super) struct Lowers<'a> {
    stack: &'a Stack,
    way: Vec<Vec<u8>>,
    there: Option<Entered>,
}

impl<'a> Lowers<'a> {
    pub(super) fn new(stack: &'a Stack) -> Self {
        Self {
            stack,
            way: Vec::new(),
            there: None,
        }
    }

    /// What is at a way of one component or more. What they have behind a link is a link too, and what is behind a
    /// file is nothing.
    pub(super) fn enter(&mut self, way: &[&[u8]]) -> Result<&Entered> {
        let known = match &self.there {
            Some(_) if begins(way, &self.way) => self.way.len(),
            _ => 0,
        };
        if known == 0 {
            self.way.clear();
            self.there = None;
        }
        for part in &way[known..] {
            let next = match &self.there {
                None => self.stack.root().enter(part)?,
                Some(Entered::Directory(_, merged)) => merged.enter(part)?,
                Some(Entered::Link) => Entered::Link,
                Some(Entered::Nothing) => Entered::Nothing,
            };
            self.way.push(part.to_vec());
            self.there = Some(next);
        }
        Ok(self.there.get_or_insert(Entered::Nothing))
    }

    /// The directory at a way, if they have one.
    pub(super) fn at(&mut self, way: &[&[u8]]) -> Result<Option<&Merged>> {
        if way.is_empty() {
            return Ok(Some(self.stack.root()));
        }
        Ok(match self.enter(way)? {
            Entered::Directory(_, merged) => Some(merged),
            Entered::Link | Entered::Nothing => None,
        })
    }

    /// Whether a way leads through a link of theirs.
    pub(super) fn behind_link(&mut self, way: &[&[u8]]) -> Result<bool> {
        Ok(!way.is_empty() && matches!(self.enter(way)?, Entered::Link))
    }
}

fn begins(way: &[&[u8]], start: &[Vec<u8>]) -> bool {
    way.len() >= start.len() && start.iter().zip(way).all(|(one, other)| one == other)
}
