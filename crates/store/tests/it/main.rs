//! Tests of the store through its public face. New ones go into the module of their matter.

mod crash; // ends of the process at any moment, and the child that is ended
mod disk; // full, read-only and damaged disks
mod objects; // bytes beside the rows
mod scratch; // a directory for each test
mod suite; // the suite that every engine must pass
