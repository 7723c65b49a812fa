// Package similar finds what was probably meant by a misspelled name.
package similar

// Distance returns the Levenshtein distance of two texts, in bytes.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitution := diagonal
			if a[i] != b[j] {
				substitution++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitution, row[j]+1, row[j+1]+1)
		}
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
