package imagepin

import "testing"

func BenchmarkEncodeKeyLabel(b *testing.B) {
	e := sampleEntry()
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := EncodeKeyLabel(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeKeyLabel(b *testing.B) {
	name, value, err := EncodeKeyLabel(sampleEntry())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeKeyLabel(name, value); err != nil {
			b.Fatal(err)
		}
	}
}
