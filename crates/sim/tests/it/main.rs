//! The tests of protocols, generated from the list of protocols where they can be.

mod exhaustive;
mod laws;
mod mutants;
mod prices;
mod scenarios;
mod second_opinion;
mod seeds;
mod traces;
mod walk;
