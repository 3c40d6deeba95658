// Length and CRC-32 of a text: {"text": "..."} on standard input, {"bytes": 9, "crc32": "cbf43926"} on
// standard output. Built to examples/tools/checksum/checksum.wasm by examples/c/build.sh.
//
// The schema of the tool was checked before: the input is JSON, and its one member is a string. What does not
// fit all the same ends the program with status 1 and a word on standard error.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Longest input in bytes, which is the most that a tool is sent.
#define MOST (1 << 20)

static char input[MOST + 1];
static char text[MOST + 1];
static const char *at = input;

static _Noreturn void refuse(const char *why) {
    fprintf(stderr, "checksum: %s\n", why);
    exit(1);
}

static void expect(char wanted) {
    at += strspn(at, " \t\r\n");
    if (*at++ != wanted) refuse("expected {\"text\": STRING}");
}

// Four hexadecimal digits.
static uint32_t unit(void) {
    uint32_t value = 0;
    for (int digit = 0; digit < 4; digit++, at++) {
        const char *place = *at ? strchr("0123456789abcdefABCDEF", *at) : NULL;
        if (!place) refuse("a bad \\u");
        int number = (int)(place - "0123456789abcdefABCDEF");
        value = value << 4 | (uint32_t)(number < 16 ? number : number - 6);
    }
    return value;
}

// The character of \uXXXX, or of two of them that are a pair.
static uint32_t character(void) {
    uint32_t high = unit();
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high > 0xDBFF || at[0] != '\\' || at[1] != 'u') refuse("half a pair");
    at += 2;
    uint32_t low = unit();
    if (low < 0xDC00 || low > 0xDFFF) refuse("half a pair");
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

// Writes a character in UTF-8; in JSON it takes more bytes than here, so there is room for it.
static char *put(char *to, uint32_t code) {
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = {0, 0xC0, 0xE0, 0xF0};
    *to++ = (char)(lead[more] | code >> (6 * more));
    while (more--) *to++ = (char)(0x80 | (code >> (6 * more) & 0x3F));
    return to;
}

// Reads a JSON string into `text` and returns its length.
static size_t string(void) {
    char *to = text;
    expect('"');
    while (*at != '"') {
        if (!*at) refuse("a string without an end");
        if (*at != '\\') {
            *to++ = *at++;
            continue;
        }
        at++;
        char escape = *at++;
        const char *place = escape ? strchr("\"\\/bfnrt", escape) : NULL;
        if (escape == 'u') to = put(to, character());
        else if (place) *to++ = "\"\\/\b\f\n\r\t"[place - "\"\\/bfnrt"];
        else refuse("a bad escape");
    }
    at++;
    return (size_t)(to - text);
}

static uint32_t crc32(size_t length) {
    uint32_t crc = ~0u;
    for (size_t index = 0; index < length; index++) {
        crc ^= (uint8_t)text[index];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

int main(void) {
    size_t got = fread(input, 1, MOST, stdin);
    if (ferror(stdin) || strlen(input) != got) refuse("an input that cannot be read");
    expect('{');
    if (string() != 4 || memcmp(text, "text", 4)) refuse("expected {\"text\": STRING}");
    expect(':');
    size_t length = string();
    expect('}');
    printf("{\"bytes\": %zu, \"crc32\": \"%08x\"}\n", length, (unsigned)crc32(length));
    return 0;
}
