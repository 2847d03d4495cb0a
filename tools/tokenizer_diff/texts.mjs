// Generated texts that exercise every rule of a byte-level tokenizer: scripts, marks, digits, white space,
// contractions, emoji, code, added tokens. The same seed gives the same texts.

function random(seed) {
  let a = seed >>> 0
  return () => {
    a = (a + 0x6d2b79f5) >>> 0
    let t = Math.imul(a ^ (a >>> 15), 1 | a)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

const words = {
  latin: 'the quick brown fox jumps over lazy dog Zürich naïve café Ångström résumé Straße œuvre coöperate I’m'.split(' '),
  scripts: 'Привет мир Ελληνικά ὀξεῖα עברית العربيّة हिन्दी वाक्य ภาษาไทย ไม้ 한국어 日本語テキスト 中文测试 ქართული Հայերեն தமிழ் မြန်မာ ខ្មែរ አማርኛ'.split(' '),
  code: ['for (int i = 0; i < n; ++i) {', '\treturn x->y[3];', 'def f(self, *args):', '    pass', 'x_1 != y2 && !z', '#include <a/b.h>', '"\\n\\t"', '// --- ===', '{"k": [1.5e-3, null]}', '<div class="a">', 'a::b<c>', '$HOME/%d', '0xDEADbeef', 'λ x → x²', '```py'],
  contractions: "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'Ve 'M 'LL 'lL 'D 'ſ 'K ’s 'x '' 'sa 'rE 'l 'r don't we'LL it'ſ O'Neil".split(' '),
  digits: '0 7 42 1234567890 3.14159 １２３ ٣٤٥ ५६ Ⅻ ½ ² ③ 〇 1,000,000 𝟘𝟙 12ab34'.split(' '),
  emoji: '😀 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ ☃ ☃︎ 1️⃣ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ✈️'.split(' '),
  punctuation: '. , ... !!! ?! -- — « » “ ” ( ) [] {} @ # $% ^& * ~ ` | \\ / ; : € £ § ¶ • 、 。 「」 ・ ߷ \u200b \u200d \ufeff \u00ad \u180e'.split(' '),
  special: ['<|im_start|>', '<|im_end|>', '<|endoftext|>', '<think>', '</think>', '<tool_call>', '<|im_', '<|im_end', '|>', '<|', '<<|im_end|>>', '<think', '<|IM_END|>'],
}
const whites = [' ', ' ', ' ', '  ', '   ', '\n', '\n\n', '\r\n', '\t', ' \n', '\n ', ' \t ', '\r', '\u00a0', '\u3000', '\u2028', '\u0085', '\u1680', '\v', '\f', '     \n\n   ', '\u200a', '']
const marks = ['\u0301', '\u0308', '\u0327', '\u0323', '\u094d', '\u064b', '\u0e48', '\u20dd', '\ufe0f', '\u3099', '\u0315', '\u0345', '\u1dce', '\u0344', '\u0f71\u0f72']
// Characters whose NFC is something else: singletons, exclusions, Hangul jamo, compatibility ideographs, reordering.
const unnormal = ['e\u0301', 'A\u030a', '\u212b', '\u2126', '\u1100\u1161\u11a8', '\u0958', '\uf900', '\ufb1d', 'a\u0323\u0307', 'a\u0307\u0323', '\u0344', '\u2adc', '\u1e9b\u0323', '\u0340', '\u037e', '\ud834\udd5e', '\u{2f800}', 'q\u0307\u0323']
const kinds = Object.keys(words)

export function texts(count, seed) {
  const next = random(seed)
  const pick = (list) => list[Math.floor(next() * list.length)]
  const anyChar = () => {
    for (;;) {
      const c = Math.floor(next() * pick([0x80, 0x250, 0x3000, 0xffff, 0x1f000, 0x10ffff]))
      if (c < 0xd800 || c > 0xdfff) return String.fromCodePoint(c)
    }
  }
  const word = (kind) => {
    const r = next()
    if (r < 0.1) return pick(unnormal)
    if (r < 0.2) return anyChar()
    if (r < 0.3) return pick(words.latin) + pick(marks)
    if (r < 0.33) return pick(marks)
    return pick(words[r < 0.6 ? pick(kinds) : kind])
  }
  const out = ['', ' ', '\n', ' a', 'a ', 'a  ', '\u0301', ' \u0301', "'", "''s"]
  while (out.length < count) {
    const kind = pick(kinds)
    let text = ''
    for (let n = Math.floor(next() * 24); n >= 0; --n) text += word(kind) + (next() < 0.7 ? pick(whites) : '')
    out.push(text)
  }
  out.push('a'.repeat(20000), ' '.repeat(20000), '\n'.repeat(5000), 'ab'.repeat(5000) + '!?'.repeat(5000), '漢字'.repeat(3000), '7'.repeat(2000), "'s".repeat(2000))
  return out
}

export function idLists(count, nIds, seed) {
  const next = random(seed)
  const out = []
  while (out.length < count) out.push(Array.from({ length: Math.floor(next() * 12) }, () => Math.floor(next() * nIds)))
  return out
}

// Every code point (no surrogates) where a boundary shows its class: between letters, behind a space, doubled.
export function* codePointTexts() {
  for (let c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue
    const s = String.fromCodePoint(c)
    yield `a${s}b ${s}${s}1 ${s}`
  }
}
