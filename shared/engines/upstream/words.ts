/*
 * An upstream's words, made fit for callers. They quote what only operators may know: our key for it, where it is, how it
 * is built. What callers need of them is one line about their request.
 */
import type { UpstreamConfig } from '#schemas/models.ts'
import { addressesOf } from './servers.ts'

/** Makes a text of the upstream fit for callers: one short line without keys and addresses. */
export type ErrorSanitizer = (text: string) => string

/** Characters that callers see. */
const SHOWN_MAX = 500
/** Characters that are looked at. */
const READ_MAX = 8_000
/** A shorter value of a header may be a word of any sentence. */
const SECRET_MIN = 6

/** Headers whose values are no secrets. */
const PLAIN = new Set([
  'content-type',
  'accept',
  'accept-encoding',
  'user-agent',
  'anthropic-version',
  'anthropic-beta',
])

/** What Python servers put below their message. */
const TRACE = /Traceback \(most recent call last\)|\bFile "[^"]*", line \d/
const CREDENTIALS = /\bBearer\s+[^\s,;]{6,}|\bsk-[\w*.-]{6,}/gi
const URLS = /\b[a-z][a-z0-9+.-]*:\/\/[^\s"'<>]+/gi
/** IPv4, and IPv6 in brackets, with or without a port. */
const IPS = /(?:\b\d{1,3}(?:\.\d{1,3}){3}\b|\[[0-9a-f.]*:[0-9a-f.]*:[0-9a-f:.]*\])(?::\d+)?/gi
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is removed
const BLANK = /[\s\u0000-\u001f\u007f-\u009f]+/g

/**
 * The cleaner of one upstream's words.
 *
 * Taken out are its key and every other header that the catalogue sends, its address however it is written, all other
 * URLs and IP addresses (it may name servers behind it), credentials of a known form, and stack traces. A name of the
 * upstream for the model becomes the one that callers know.
 *
 * @param headers Those sent with every call, in lower case.
 */
export function cleanerOf(
  model: string,
  config: UpstreamConfig,
  headers: Readonly<Record<string, string>>,
): ErrorSanitizer {
  const secrets = anyOf(secretsOf(config, headers), '')
  const hosts = anyOf(hostsOf(config), WORD)
  const name = anyOf(config.model === undefined ? [] : [config.model], WORD)
  return (text) => {
    const [words = ''] = text.slice(0, READ_MAX).split(TRACE, 1)
    const clean = words
      .replace(CREDENTIALS, '[key]')
      .replace(secrets, '[hidden]')
      .replace(URLS, '[address]')
      .replace(IPS, '[address]')
      .replace(hosts, '[address]')
      .replace(name, () => model)
    return clean.replace(BLANK, ' ').trim().slice(0, SHOWN_MAX)
  }
}

function secretsOf(config: UpstreamConfig, headers: Readonly<Record<string, string>>): string[] {
  const users = addressesOf(config).flatMap(({ url }) => secretsIn(new URL(url)))
  const values = Object.entries(headers).flatMap(([name, value]) => (PLAIN.has(name) ? [] : [value]))
  // Of `Bearer key` the key alone is as secret.
  const parts = [...values, ...values.flatMap((value) => value.split(/\s+/)), ...users]
  return parts.filter((part) => part.length >= SECRET_MIN).flatMap((part) => [part, encodeURIComponent(part)])
}

/** Some servers take a key in the query. */
function secretsIn({ username, password, searchParams }: URL): string[] {
  const values = [...searchParams].flatMap(([name, value]) => (/version$/i.test(name) ? [] : [value]))
  return [username, password, ...values]
}

function hostsOf(config: UpstreamConfig): string[] {
  return addressesOf(config).flatMap(({ url }) => namesOf(new URL(url)))
}

function namesOf({ host, hostname, port }: URL): string[] {
  // A name without dots, such as `vllm`, is also a word; with a port it is an address.
  const isWord = !/[.:]/.test(hostname)
  return [...(port === '' && isWord ? [] : [host]), ...(isWord ? [] : [hostname])]
}

/** What may not stand beside a name, or it would be part of another. */
const WORD = '[\\w-]'

/** Finds any of these texts, the longest first, where nothing of `beside` touches them. */
function anyOf(texts: readonly string[], beside: string): RegExp {
  if (texts.length === 0) return NOTHING
  const any = texts
    .toSorted((a, b) => b.length - a.length)
    .map((text) => RegExp.escape(text))
    .join('|')
  return new RegExp(beside === '' ? any : `(?<!${beside})(?:${any})(?!${beside})`, 'gi')
}

const NOTHING = /(?!)/g
