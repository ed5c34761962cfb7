// Package sqlrun runs SQL on a MySQL or MariaDB server: one of the user's, or one that it starts itself ([Private]).
//
// A [Session] is one connection, so that what a connection keeps is kept: the database in use, variables, temporary
// tables, transactions, locks. Its values come exactly as the server prints them (the text protocol of
// https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query.html), row by row, never collected.
// Whether a statement has rows is decided by whether the server sent columns.
//
// Go-sql-driver/mysql connects and authenticates. The statements themselves are sent and read here: that driver makes
// numbers of what the server printed, which loses digits, and drops the affected rows of all but one statement.
//
// Invariants: a statement that was stopped doesn't run on at the server (KILL QUERY); after it the connection is in step,
// or it is given up and that is told. A lost connection is told once, never papered over: the next statement gets a new one.
//
//	db := sqlrun.NewServer(sqlrun.Config{Private: sqlrun.NewPrivate(sqlrun.PrivateConfig{Dir: dir, RunDir: run})})
//	s := db.Session()
//	err := s.Run(ctx, "SELECT 1; SELECT 2", answer) // answer is an Answer
package sqlrun
