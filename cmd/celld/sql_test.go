package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

// sqlTable is what text/plain of an SQL result holds.
type sqlTable struct {
	Columns []string `json:"columns"`
	Rows    [][]any  `json:"rows"`
}

// tables decodes the result sets of a cell; the pieces of one are joined.
func (o *outcome) tables(t *testing.T) (all []sqlTable) {
	t.Helper()
	goesOn := false
	for _, e := range o.results {
		text, ok := e.Results["text/plain"].(string)
		if !ok && e.Partial {
			continue // types of a large result come apart
		}
		var x sqlTable
		if err := json.Unmarshal([]byte(text), &x); err != nil || e.Results["text"] != text || x.Columns == nil || x.Rows == nil || e.Table == nil {
			t.Fatalf("not a result set: %v %+v", err, e)
		}
		if goesOn {
			last := &all[len(all)-1]
			last.Rows = append(last.Rows, x.Rows...)
		} else {
			all = append(all, x)
		}
		goesOn = e.Partial
	}
	return all
}

// sql runs statements in the default context, which must succeed, and returns what they answered.
func (d *daemon) sql(text string, more ...m) []sqlTable {
	d.t.Helper()
	o := d.code("sql", text, more...)
	if o.end.Error != nil {
		d.t.Fatalf("%s: %+v", text, o.end.Error)
	}
	return o.tables(d.t)
}

// answers checks that a statement answers with one result set of these columns and rows.
func (d *daemon) answers(text, columns string, rows ...[]any) {
	d.t.Helper()
	got := d.sql(text)
	if rows == nil {
		rows = [][]any{}
	}
	want := []sqlTable{{strings.Fields(columns), rows}}
	if !reflect.DeepEqual(got, want) {
		d.t.Errorf("%s:\n got %q\nwant %q", text, got, want)
	}
}

type row = []any

// sqlContext makes a context of language sql.
func (d *daemon) sqlContext() codeContext { return d.context(m{"language": "sql"}) }

// One daemon, and one server of its own, serves all of these.
func TestSQL(t *testing.T) {
	t.Parallel()
	d := start(t, launch{})
	for _, group := range []struct {
		name string
		run  func(*testing.T, *daemon)
	}{
		{"values are exact", testSQLValues},
		{"rows are known by the columns", testSQLRows},
		{"state", testSQLState},
		{"several result sets", testSQLSets},
		{"errors", testSQLErrors},
		{"statements are stopped", testSQLStops},
		{"large results", testSQLLarge},
		{"one answer", testSQLAnswer},
	} {
		t.Run(group.name, func(t *testing.T) { group.run(t, d.in(t)) })
	}
}

func testSQLValues(t *testing.T, d *daemon) {
	d.answers("SELECT 'hi é😀' AS s, 1.50 AS d, DATE'2024-01-02' AS dt, JSON_OBJECT('k',1) AS j, 7 AS i, 1e0/4 AS f",
		"s d dt j i f", row{"hi é😀", "1.50", "2024-01-02", `{"k": 1}`, "7", "0.25"})
	d.answers("SELECT 9007199254740993 AS a, -9223372036854775808 AS b, 18446744073709551615 AS c, CAST('12345678901234567890.123456789' AS DECIMAL(40,9)) AS d",
		"a b c d", row{"9007199254740993", "-9223372036854775808", "18446744073709551615", "12345678901234567890.123456789"})
	d.answers("SELECT NULL AS a, '' AS b, 'NULL' AS c", "a b c", row{nil, "", "NULL"})
	d.answers("SELECT 1 AS x FROM DUAL WHERE 1=0", "x")
	d.answers(`SELECT x'ff00' AS b, x'' AS e, x'68c3a9' AS t, b'101' AS bit, 'a"b\\c\nd\t|\0\u2028' AS q`,
		"b e t bit q", row{"0xff00", "", "hé", "\x05", "a\"b\\c\nd\t|\x00u2028"})
	d.answers("SELECT 1e15 AS a, 1e-30 AS b, CAST(1.1 AS FLOAT) AS c, 1e308 AS d, TRUE AS e, YEAR('1999-01-01') AS f",
		"a b c d e f", row{"1e15", "1e-30", "1.1", "1e308", "1", "1999"})
	d.answers("SELECT CHAR(0xe2, 0x80, 0xa8, 0xc2, 0x85 USING utf8mb4) AS s", "s", row{"\u2028\u0085"})

	d.sql("CREATE TABLE z1 (z DATETIME, n INT(6) ZEROFILL NOT NULL, b BIT(9), e ENUM('x','y'), g POINT)")
	d.sql("SET sql_mode=''")
	d.sql("INSERT INTO z1 VALUES ('0000-00-00 00:00:00', 42, b'101', 'y', POINT(1, 2))")
	d.answers("SELECT z, CAST('838:59:59' AS TIME) AS t, TIMESTAMP'2024-02-29 23:59:59.123456' AS ts, DATE'1000-01-01' AS d FROM z1",
		"z t ts d", row{"0000-00-00 00:00:00", "838:59:59", "2024-02-29 23:59:59.123456", "1000-01-01"})
	o := d.code("sql", "SELECT n, b, e, g FROM z1")
	if got := o.tables(t)[0].Rows[0]; !reflect.DeepEqual(got[:3], row{"000042", "0x0005", "y"}) || !strings.HasPrefix(got[3].(string), "0x") {
		t.Errorf("got %q", got)
	}
	var types []string
	for _, c := range o.results[0].Table.Columns {
		types = append(types, fmt.Sprint(c.Name, " ", c.Type, " ", *c.Nullable))
	}
	if want := []string{"n INT UNSIGNED ZEROFILL false", "b BIT true", "e ENUM true", "g GEOMETRY true"}; !slices.Equal(types, want) {
		t.Errorf("columns %q, want %q", types, want)
	}
	o = d.code("sql", "SELECT 1 AS x, 2 AS x, 'a|b\nc' AS `p|q`")
	if got := o.tables(t)[0]; !slices.Equal(got.Columns, []string{"x", "x", "p|q"}) {
		t.Errorf("columns that share a name: %q", got)
	}
	if md, want := o.results[0].Results["text/markdown"], "| x | x | p\\|q |\n|---|---|---|\n| 1 | 2 | a\\|b<br>c |\n"; md != want {
		t.Errorf("for people: %q, want %q", md, want)
	}
}

func testSQLRows(t *testing.T, d *daemon) {
	d.sql("CREATE TABLE t5 (a INT, KEY (a))")
	for text, want := range map[string]string{
		"-- c\nSELECT 5 AS x": "5", "/* c */ SELECT 6 AS x": "6", "# c\nSELECT 7 AS x": "7", "(SELECT 9 AS x)": "9", "select 10 as x": "10",
		"WITH c AS (SELECT 8 AS x) SELECT * FROM c": "8", "SELECT 1 AS x;": "1", "EXECUTE IMMEDIATE 'SELECT 11 AS x'": "11",
	} {
		d.answers(text, "x", row{want})
	}
	if got := d.sql("VALUES (1),(2)"); len(got) != 1 || !reflect.DeepEqual(got[0].Rows, [][]any{{"1"}, {"2"}}) {
		t.Errorf("VALUES: %q", got)
	}
	if got := d.sql("SHOW DATABASES"); len(got) != 1 || got[0].Columns[0] != "Database" || !slices.ContainsFunc(got[0].Rows, func(r []any) bool { return r[0] == "sandbox" }) {
		t.Errorf("SHOW DATABASES: %q", got)
	}
	if got := d.sql("DESCRIBE t5"); len(got) != 1 || got[0].Columns[0] != "Field" || got[0].Rows[0][0] != "a" {
		t.Errorf("DESCRIBE: %q", got)
	}
	if got := d.sql("EXPLAIN SELECT 1"); len(got) != 1 || got[0].Columns[0] != "id" || len(got[0].Rows) != 1 {
		t.Errorf("EXPLAIN: %q", got)
	}
	if got := d.sql("ANALYZE TABLE t5"); len(got) != 1 || got[0].Columns[0] != "Table" {
		t.Errorf("ANALYZE TABLE: %q", got)
	}
	d.answers("INSERT INTO t5 VALUES (1),(2) RETURNING a+1 AS b", "b", row{"2"}, row{"3"})
	d.answers("SELECT a, ROW_NUMBER() OVER (ORDER BY a DESC) AS n FROM t5 ORDER BY a", "a n", row{"1", "2"}, row{"2", "1"})
	d.answers("UPDATE t5 SET a=a+10", "affected_rows", row{2.0})
	d.answers("SET @x = 1", "affected_rows", row{0.0})

	d.sql("CREATE TABLE k (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, v TINYINT)")
	d.sql("CREATE TABLE log (v INT)")
	d.sql("CREATE TRIGGER tr AFTER INSERT ON k FOR EACH ROW BEGIN INSERT INTO log VALUES (NEW.v); INSERT INTO log VALUES (NEW.v + 1); END")
	d.sql("SET sql_mode=''")
	o := d.code("sql", "INSERT INTO k VALUES (18446744073709551610, 3), (NULL, 300)")
	if len(o.results) != 1 || o.results[0].Table.LastInsertID != "18446744073709551611" || o.results[0].Table.Warnings != 1 ||
		o.results[0].Table.Info != "Records: 2  Duplicates: 0  Warnings: 1" {
		t.Errorf("an insert: %+v", o.results)
	}
	if got := d.sql("SHOW WARNINGS"); len(got[0].Rows) != 1 || got[0].Rows[0][1] != "1264" {
		t.Errorf("the warnings: %q", got)
	}
	d.answers("SELECT v FROM log", "v", row{"3"}, row{"4"}, row{"127"}, row{"128"})
}

func testSQLState(t *testing.T, d *daemon) {
	d.answers("SELECT DATABASE() AS d", "d", row{"sandbox"})
	d.sql("CREATE DATABASE IF NOT EXISTS d1")
	d.sql("USE d1")
	d.sql("CREATE TEMPORARY TABLE tt(x INT)")
	d.sql("SET @v=41")
	a, b := d.sqlContext(), d.sqlContext()
	sleepers := []*stream{d.begin(a.ID, "SELECT SLEEP(600)"), d.begin(b.ID, "SELECT SLEEP(600)")}
	for range 20 {
		d.answers("SELECT @v+1 AS a, DATABASE() AS b, (SELECT COUNT(*) FROM tt) AS c", "a b c", row{"42", "d1", "0"})
	}
	d.sql("CREATE TABLE tx(x INT)")
	for _, text := range []string{"BEGIN", "INSERT INTO tx VALUES (1)", "ROLLBACK"} {
		d.sql(text)
	}
	d.answers("SELECT COUNT(*) AS n FROM tx", "n", row{"0"})
	d.sql("SELECT GET_LOCK('l', 0)")
	d.answers("SELECT IS_USED_LOCK('l') = CONNECTION_ID() AS mine", "mine", row{"1"})

	if list := d.contexts("SQL"); len(list) != 3 || !slices.Contains(list, a) || a.Language != "sql" {
		t.Errorf("contexts %v", list)
	}
	for i, id := range []string{a.ID, b.ID} {
		if status := d.call("DELETE", "/code/contexts/"+id, nil, nil); status != http.StatusOK {
			t.Errorf("delete: %d", status)
		}
		if o := sleepers[i].rest(); o.failed() != "CommandInterrupted" || len(o.results) > 0 {
			t.Errorf("what ran in a deleted context ended with %+v and %v", o.end, o.results)
		}
	}
	d.answers("SELECT COUNT(*) AS n FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'", "n", row{"0"})

	c := d.sqlContext()
	if o := d.cell(c.ID, "CREATE TEMPORARY TABLE other(x INT); SET @v=1"); o.end.Error != nil {
		t.Errorf("another context: %+v", o.end.Error)
	}
	if o := d.code("sql", "SELECT * FROM other"); o.failed() != "DBQueryError" || o.end.Error.Code != 1146 {
		t.Errorf("another context's temporary table: %+v", o.end.Error)
	}
	if status := d.call("POST", "/code/contexts/"+c.ID+"/restart", nil, nil); status != http.StatusOK {
		t.Errorf("restart: %d", status)
	}
	if got := d.cell(c.ID, "SELECT @v AS v, DATABASE() AS d").tables(t); !reflect.DeepEqual(got[0].Rows, [][]any{{nil, "sandbox"}}) {
		t.Errorf("after a restart: %q", got)
	}
	d.refused(http.StatusBadRequest, "POST", "/code/context", m{"language": "sql", "cwd": "/no/such"})
	d.refused(http.StatusBadRequest, "POST", "/code", m{"context": m{"id": c.ID, "language": "python"}, "code": "1"})
	d.refused(http.StatusBadRequest, "POST", "/code", m{"context": m{"language": "sql"}, "code": ""})

	d.sql("CREATE TABLE counter (n INT)")
	d.sql("SET @n = 0")
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[any]bool{}
	for range 20 {
		wg.Go(func() {
			got := d.sql("SET @n = @n + 1; SELECT @n AS n")
			mu.Lock()
			defer mu.Unlock()
			seen[got[1].Rows[0][0]] = true
		})
	}
	wg.Wait()
	if len(seen) != 20 || !seen["20"] {
		t.Errorf("20 runs at once counted %v", seen)
	}
	d.sql("USE sandbox")
}

func testSQLSets(t *testing.T, d *daemon) {
	d.sql("CREATE PROCEDURE p2() BEGIN SELECT 1 AS a; SELECT 2 AS b, 3 AS c; END")
	d.sql("CREATE PROCEDURE p3() BEGIN SELECT 1; SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT='boom'; END")
	want := []sqlTable{{[]string{"a"}, [][]any{{"1"}}}, {[]string{"b", "c"}, [][]any{{"2", "3"}}}}
	if got := d.sql("CALL p2()"); !reflect.DeepEqual(got, want) {
		t.Errorf("CALL: %q", got)
	}
	o := d.code("sql", "CALL p3()")
	if o.failed() != "DBQueryError" || !strings.Contains(o.end.Error.Evalue, "boom") || o.end.Error.Code != 1644 || o.end.Error.SQLState != "45000" || len(o.results) != 1 {
		t.Errorf("a procedure that fails: %+v", o.end.Error)
	}
	d.answers("SELECT 'next' AS n", "n", row{"next"})
	if got := d.sql("CREATE TABLE s1 (a INT); INSERT INTO s1 VALUES (1),(2),(3); SELECT a FROM s1; DELETE FROM s1 WHERE a > 1; CALL p2(); SELECT 'end;' AS e"); len(got) != 8 ||
		len(got[2].Rows) != 3 || !reflect.DeepEqual(got[3].Rows, [][]any{{2.0}}) || !reflect.DeepEqual(got[4:6], want) || got[7].Rows[0][0] != "end;" {
		t.Errorf("several statements: %q", got)
	}
	o = d.code("sql", "SELECT 1 AS a; SELECT nope; SELECT 3")
	if got := o.tables(t); len(got) != 1 || o.failed() != "DBQueryError" || o.end.Error.Code != 1054 || o.end.Error.SQLState != "42S22" {
		t.Errorf("an error in the middle: %q and %+v", got, o.end.Error)
	}
}

func testSQLErrors(t *testing.T, d *daemon) {
	// Rows that come before the error are not passed off as the whole.
	for _, text := range []string{
		"SELECT CAST(seq AS SIGNED) + 9223372036854770000 AS n FROM seq_1_to_10000",
		"WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c WHERE n<900) SELECT CAST(n AS SIGNED)+9223372036854775000 FROM c",
	} {
		o := d.code("sql", text)
		if o.failed() != "DBQueryError" || o.end.Error.Code != 1690 || !strings.Contains(o.end.Error.Evalue, "out of range") || len(o.results) > 0 {
			t.Errorf("%s: %d results, %+v", text, len(o.results), o.end.Error)
		}
	}
	for text, want := range map[string]string{
		" ": "Error 1065 (42000): Query was empty", ";": "Error 1065 (42000): Query was empty", "SELEC 1": "Error 1064 (42000)",
		"INSERT INTO nowhere VALUES (1)":                     "Error 1146 (42S02): Table 'sandbox.nowhere' doesn't exist",
		"LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t5": "4166",
	} {
		if o := d.code("sql", text); o.failed() != "DBExecError" || !strings.Contains(o.end.Error.Evalue, want) || len(o.end.Error.Traceback) == 0 {
			t.Errorf("%q: %+v", text, o.end)
		}
	}
	if o := d.code("sql", "-- only a comment"); o.end.Type != "execution_complete" && o.end.Error.Code != 1065 {
		t.Errorf("only a comment: %+v", o.end)
	}
	if status := d.call("GET", "/ping", nil, nil); status != http.StatusOK {
		t.Errorf("ping: %d", status)
	}
	d.answers("SELECT 1 AS x", "x", row{"1"})
}
