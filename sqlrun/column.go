package sqlrun

import "encoding/binary"

// Flags of a column.
const (
	flagNotNull  = 1 << 0
	flagUnsigned = 1 << 5
	flagZerofill = 1 << 6
	flagEnum     = 1 << 8
	flagSet      = 1 << 11
)

const binaryCharset = 63

// typeNames are the names of the column types of the protocol, of which those of strings depend on more.
var typeNames = map[byte]string{
	0: "DECIMAL", 1: "TINYINT", 2: "SMALLINT", 3: "INT", 4: "FLOAT", 5: "DOUBLE", 6: "NULL", 7: "TIMESTAMP", 8: "BIGINT",
	9: "MEDIUMINT", 10: "DATE", 11: "TIME", 12: "DATETIME", 13: "YEAR", 14: "DATE", 15: "VARCHAR", 16: "BIT", 17: "TIMESTAMP",
	18: "DATETIME", 19: "TIME", 242: "VECTOR", 245: "JSON", 246: "DECIMAL", 247: "ENUM", 248: "SET", 249: "TINYTEXT",
	250: "MEDIUMTEXT", 251: "LONGTEXT", 252: "TEXT", 253: "VARCHAR", 254: "CHAR", 255: "GEOMETRY",
}

// binaryNames are those of the same types without a character set.
var binaryNames = map[byte]string{
	15: "VARBINARY", 249: "TINYBLOB", 250: "MEDIUMBLOB", 251: "LONGBLOB", 252: "BLOB", 253: "VARBINARY", 254: "BINARY",
}

// parseColumn reads a column definition (Protocol::ColumnDefinition41).
func parseColumn(b []byte) (c Column, err error) {
	var name []byte
	for i := range 6 { // catalog, schema, table, its own name, column, its own name
		var s []byte
		if s, b, err = text(b); err != nil {
			return c, err
		}
		if i == 4 {
			name = s
		}
	}
	if len(b) < 11 {
		return c, errMalformed
	}
	charset, length := binary.LittleEndian.Uint16(b[1:]), binary.LittleEndian.Uint32(b[3:])
	kind, flags := b[7], binary.LittleEndian.Uint16(b[8:])
	return Column{
		Name: string(name), Type: typeName(kind, flags, charset, length), Nullable: flags&flagNotNull == 0,
		Bits: kind == 16 || kind == 255 || kind == 242,
	}, nil
}

func typeName(kind byte, flags, charset uint16, length uint32) string {
	name := typeNames[kind]
	switch {
	case name == "":
		return "UNKNOWN"
	case flags&flagEnum != 0:
		return "ENUM"
	case flags&flagSet != 0:
		return "SET"
	case kind == 252: // all sizes come as this one
		name = "TEXT"
		if charset == binaryCharset {
			name = "BLOB"
		}
		switch {
		case length <= 0xFF:
			return "TINY" + name
		case charset == binaryCharset && length <= 0xFFFF || charset != binaryCharset && length <= 4*0xFFFF:
			return name
		case charset == binaryCharset && length <= 0xFFFFFF || charset != binaryCharset && length <= 4*0xFFFFFF:
			return "MEDIUM" + name
		}
		return "LONG" + name
	case charset == binaryCharset && binaryNames[kind] != "":
		return binaryNames[kind]
	case kind == 13 || kind == 16 || kind == 7: // unsigned by nature
		return name
	case flags&flagZerofill != 0:
		return name + " UNSIGNED ZEROFILL"
	case flags&flagUnsigned != 0 && (kind <= 5 || kind == 8 || kind == 9 || kind == 246):
		return name + " UNSIGNED"
	}
	return name
}
