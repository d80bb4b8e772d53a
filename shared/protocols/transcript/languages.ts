/** Language codes and names (docs/reference/compatibility.md, Languages). */

/** Languages of the speech models: code and lower-case English name. */
const NAMES: ReadonlyMap<string, string> = new Map(
  `
    af afrikaans, am amharic, ar arabic, as assamese, az azerbaijani, ba bashkir, be belarusian,
    bg bulgarian, bn bengali, bo tibetan, br breton, bs bosnian, ca catalan, cs czech, cy welsh, da danish,
    de german, el greek, en english, es spanish, et estonian, eu basque, fa persian, fi finnish, fo faroese,
    fr french, gl galician, gu gujarati, ha hausa, haw hawaiian, he hebrew, hi hindi, hr croatian,
    ht haitian creole, hu hungarian, hy armenian, id indonesian, is icelandic, it italian, ja japanese,
    jw javanese, ka georgian, kk kazakh, km khmer, kn kannada, ko korean, la latin, lb luxembourgish,
    ln lingala, lo lao, lt lithuanian, lv latvian, mg malagasy, mi maori, mk macedonian, ml malayalam,
    mn mongolian, mr marathi, ms malay, mt maltese, my myanmar, ne nepali, nl dutch, nn nynorsk,
    no norwegian, oc occitan, pa punjabi, pl polish, ps pashto, pt portuguese, ro romanian, ru russian,
    sa sanskrit, sd sindhi, si sinhala, sk slovak, sl slovenian, sn shona, so somali, sq albanian,
    sr serbian, su sundanese, sv swedish, sw swahili, ta tamil, te telugu, tg tajik, th thai, tk turkmen,
    tl tagalog, tr turkish, tt tatar, uk ukrainian, ur urdu, uz uzbek, vi vietnamese, yi yiddish, yo yoruba,
    yue cantonese, zh chinese
  `
    .split(',')
    .map((pair) => pair.trim())
    .map((pair) => [pair.slice(0, pair.indexOf(' ')), pair.slice(pair.indexOf(' ') + 1)] as const),
)

/** The remaining codes of ISO-639-1. */
const OTHERS: ReadonlySet<string> = new Set(
  `
    aa ab ae ak an av ay bh bi bm ce ch co cr cu cv dv dz ee eo ff fj fy ga gd gn gv ho hz ia ie ig ii ik io
    iu kg ki kj kl kr ks ku kv kw ky lg li lu mh na nd ng nr nv ny oj om or os pi qu rm rn rw sc se sg sm ss
    st ti tn to ts tw ty ug ve vo wa wo xh za zu
  `
    .trim()
    .split(/\s+/),
)

/** ISO-639-1 codes for which speech models use another code: code → code of the models. */
const SYNONYMS: ReadonlyMap<string, string> = new Map([
  ['jv', 'jw'],
  ['nb', 'no'],
])

/** The code that speech models use for a language; undefined if ISO-639-1 has no such language. */
export function findLanguage(code: string): string | undefined {
  const lower = code.toLowerCase()
  const usual = SYNONYMS.get(lower) ?? lower
  return NAMES.has(usual) || OTHERS.has(usual) ? usual : undefined
}

const englishNames = new Intl.DisplayNames(['en'], { type: 'language', fallback: 'none' })

/** Lower-case English name of a language. Any other text, such as a name that an engine sent, is returned in lower case. */
export function languageName(code: string): string {
  const usual = findLanguage(code)
  if (usual === undefined) return code.toLowerCase()
  return NAMES.get(usual) ?? englishNames.of(usual)?.toLowerCase() ?? usual
}
