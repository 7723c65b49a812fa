// Package similar finds what was probably meant by a misspelled name.
package similar

// Distance returns how many bytes have to be inserted, removed, replaced or swapped with the next one to make b of a (optimal
// string alignment).
func Distance(a, b string) int {
	above, row, next := []int(nil), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next[0] = i + 1
		for j := range len(b) {
			next[j+1] = min(row[j+1], next[j]) + 1
			if a[i] == b[j] {
				next[j+1] = min(next[j+1], row[j])
			} else {
				next[j+1] = min(next[j+1], row[j]+1)
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], above[j-1]+1)
			}
		}
		above, row, next = row, next, make([]int, len(b)+1)
	}
	return row[len(b)]
}

// Closest returns the known name that is most similar to a name, and the first of several; "" if none is similar.
func Closest(name string, known []string) string {
	best, distance := "", min(2, len(name)/3)+1
	for _, k := range known {
		if d := Distance(name, k); d < distance || d == distance && best != "" && k < best {
			best, distance = k, d
		}
	}
	return best
}
