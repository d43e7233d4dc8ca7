// Package ratelimittest helps to test code that limits requests:
//
//   - [Client] sends requests to an application, exhausts its limits, and
//     [AssertAllowed], [AssertDenied], [AssertRemaining] and [AssertRetryAfter]
//     look at what it answered;
//   - [Clock] stands still until it is told to move;
//   - [Recorder] keeps what a limiter decided;
//   - [FaultyStore] fails, hangs or answers slowly on demand;
//   - [TestStore] is the contract that every store must pass.
//
// It needs nothing but the standard library and the limiter itself.
package ratelimittest
