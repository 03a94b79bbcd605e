// Languages as a list to choose from, by their names.

const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });

// The name of a BCP 47 tag; the tag itself where it is none.
export function languageName(code) {
  try {
    return names.of(code);
  } catch {
    return code;
  }
}

// Options of a select: `none` first, the languages by name after it.
export function languageChoices(codes, none) {
  const known = codes.filter((code) => code !== "mul").map((value) => ({ value, label: languageName(value) }));
  known.sort((a, b) => a.label.localeCompare(b.label));
  return [{ value: "", label: none, selected: true }, ...known];
}
