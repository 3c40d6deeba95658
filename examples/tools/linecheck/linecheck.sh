#!/bin/sh
# Writes findings to report.txt and a summary as JSON to standard output.
most=${1:-100}
cd /workspace || exit 1
: > report.txt
files=0
for file in $(find . -type f ! -path './.tool/*' ! -name report.txt); do
    files=$((files + 1))
    awk -v most="$most" -v file="$file" '
        length($0) > most { print file ":" NR ": " length($0) " characters" }
        /[ \t]$/ { print file ":" NR ": ends in white space" }
    ' "$file" >> report.txt
done
echo "{\"files\": $files, \"findings\": $(wc -l < report.txt)}"
