// Package hooks is the vocabulary in which everything that runs reports what happens, and the journal that keeps it.
//
// A backend calls the seven methods of [Hooks] and knows nothing else. A [Journal] stands behind them: it stamps
// each event with a position and a time, keeps it within a [Budget] and replays it to any number of readers, each with
// a cursor of its own, by calling the same seven methods on the reader's [Writer]. So a backend never knows who
// listens, and a writer never knows what ran.
//
//	j := hooks.NewJournal(hooks.Config{})
//	j.OnInit(hooks.Init{ExecutionID: id, ID: id})
//	go func() { j.OnStdout(hooks.Output{Data: []byte("hi\n")}); j.OnComplete(hooks.Complete{}) }()
//	err := j.Follow(ctx, 0, hooks.Print(os.Stdout))
//
// # Order of the calls
//
// OnInit comes exactly once and first; then any number of OnStdout, OnStderr, OnResult and OnStatus, from any number
// of goroutines; then exactly one of OnError and OnComplete, and nothing after it. The journal enforces all of it:
// what breaks the order is dropped. Every reader sees the same order.
//
// # Positions
//
// Every event has an id, its position in the journal. An event advances the position by one, output by one for each
// byte, a large result by one for each of its parts ([Result.Parts]); an event carries the position after its last byte
// or part, and a reader that starts inside a result is given all of it. OnInit is at 1. "Continue after N" is the one rule
// for resuming, and N may be any position.
//
// Output of one stream may come to two readers in different chunks, and adjacent chunks are kept as one. What a
// writer makes of it with [Text] doesn't depend on that:
//
//   - lines, and the pieces of long lines, are cut by the bytes alone ([Cutter]);
//   - a reader's ids only grow, whichever stream they belong to: a piece that is complete only since another byte came
//     carries that byte's position;
//   - a reader that is cut off after the event N and resumes after N in the same mode gets, joined with what it had,
//     what an uncut reader gets. For this the journal first gives it again each stream's unfinished piece before N, as
//     far as that is kept, and Text reports none of it twice;
//   - before the terminal event a stream that ended inside a line gets an Output with End, so that its rest is reported.
//
// # What is kept
//
// Bytes of output and of results lie in a [Store], which outlives the execution; everything else is in the journal's
// records, of which there are at most [MaxRecords]. What is kept is always a suffix of what was reported, and OnInit.
// A record goes when any of its bytes are gone. A reader that asks for more is told exactly once of each gap, by a
// status [StateGap] with the first and the last position that are gone, and goes on after it.
//
// # Policies
//
// Under [Lossless] a reader sees no gap in what it had not seen when it attached or what came since: the hooks block
// while any attached reader, one that came late too, is 1 MiB or 5,000 records behind. They go on at once when it has
// caught up or left, and when the journal is released, which must be done when the execution's context is done. A reader that has accepted nothing for [StallTimeout] while the hooks waited gets
// [ErrStalled]; a writer that is a [Pacer] says itself when that was last. Only a result that, with what is unseen, is more than the store keeps, a full disk and a release can
// make a gap. The terminal event never waits. Once the readers that were attached then have left, what is kept is a
// matter of the budget alone, and the store's file is closed.
//
// Under [Ring] hooks never wait. A reader that had begun and then lost something gets [ErrLagged].
//
// What goes wrong with a reader (its writer's error, its context, its slowness) concerns that reader only, but that
// under Lossless it may delay the others by at most StallTimeout, however many are stuck. Nothing here starts a
// goroutine: a reader runs in the one that calls [Journal.Follow].
//
// # Locks
//
// Each guards what its struct says. They are taken in this order, and those marked are held across I/O or waiting:
//
//	Journal.order    the order of events; held while an appender waits and while it writes to the store (marked)
//	Store.appending  the order of appends; held while a segment goes to the file (marked); another store's is only tried
//	Journal.mu       records and cursors
//	Store.mu, Budget.mu
//
// Readers take mu only, of both; so they never wait for an appender, for another reader or for the disk's writes. (The
// last one to leave after the end finishes the store.)
package hooks
