import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { verifyClaim } from '#services/research/verify/verify.ts'
import { passagesOf } from '#shared/search/text/passages.ts'
import { snapshotOf } from '../../support/research/run.ts'

const QUOTE = 'A worker of Sluice renews its lease three times per 9 seconds, and Kafka keeps 1,000 records.'

describe('the verification of a claim against quotes', () => {
  test.each([
    ['the quote itself', QUOTE],
    ['the quote without its final period', QUOTE.slice(0, -1)],
    ['a contiguous part of the quote', 'A worker of Sluice renews its lease three times per 9 seconds.'],
    ['the quote with other articles and pronouns', 'The worker of Sluice renews the lease three times per 9 seconds.'],
  ])('returns supported if the claim is %s', (_, claim) => {
    expect(verifyClaim(claim, [QUOTE])).toEqual({ verdict: 'supported' })
  })

  test.each([
    ['another number', 'A worker of Sluice renews its lease three times per 8 seconds.'],
    ['another number in words', 'A worker of Sluice renews its lease four times per 9 seconds.'],
    ['another unit', 'A worker of Sluice renews its lease three times per 9 minutes.'],
    ['a number that is not in the quote', 'A worker of Sluice renews its lease in 2024.'],
    ['another name', 'A worker of Redis renews its lease three times.'],
    ['an invented source', 'According to Gartner, a worker renews its lease.'],
    ['an identifier that is not in the quote', 'A worker renews its lease by JOB_LEASE_MS.'],
    ['a URL', 'A worker renews its lease, see https://evil.example.'],
    ['a link', 'A worker renews [its lease](x).'],
    ['markup', 'A worker renews <b>its lease</b>.'],
    ['a denial', 'A worker of Sluice never renews its lease.'],
    ['a universal quantifier', 'A worker of Sluice always renews its lease.'],
    ['a name that is not in the quote', 'In Kafka a worker of Sluice renews its lease.'],
  ])('returns refused if the claim has %s', (_, claim) => {
    expect(verifyClaim(claim, [QUOTE]).verdict).toBe('refused')
  })

  test.each([
    ['has other words than the quote', 'A worker prolongs its right.'],
    ['combines the beginning and the end of the quote', 'A worker of Sluice keeps 1,000 records.'],
    ['exchanges subject and object', 'The lease renews its worker.'],
  ])('returns undecided, so that the judge model decides, if the claim %s', (_, claim) => {
    expect(verifyClaim(claim, [QUOTE]).verdict).toBe('undecided')
  })

  test.each([
    ['A hook may not be skipped by users.', 'In practice users may skip a hook.'],
    ['The cache is unsafe for two writers.', 'Two writers find a safe cache there.'],
    ['Pushing is allowed for anyone with a key.', 'Whoever has a key is forbidden to do pushing.'],
    ['The freeze begins after the transition.', 'Before the transition there is a freeze.'],
    ['Some of the tests are run at night.', 'All tests run at night.'],
    ['Reads take more time than writes.', 'Reading takes less time than writing.'],
    ['The first stage comes before the last stage.', 'The last stage comes before the last one.'],
    ['A lock is removed by hand.', 'Ferries cross the bay in winter by night.'],
    ['Perens led it in 1996 and Jackson in 1998.', 'Jackson led the project before Perens did.'],
  ])('returns refused if the claim reverses "%s" in other words', (quote, claim) => {
    expect(verifyClaim(claim, [quote]).verdict).toBe('refused')
  })

  test('returns undecided if the claim omits a condition, and refused if the claim omits a negation', () => {
    const quote = 'The job is cancelled only if the key was revoked, and never deleted.'
    expect(verifyClaim('The key was never revoked.', [quote]).verdict).toBe('undecided')
    expect(verifyClaim('The job is cancelled.', [quote]).verdict).toBe('refused')
    expect(verifyClaim('The key was revoked.', ['It is false that, if ever, the key was not revoked.']).verdict).toBe(
      'refused',
    )
  })

  test('compares a claim with each quote separately', () => {
    expect(verifyClaim('The queue holds 7 jobs.', ['The queue holds jobs.', 'The lane has 7.']).verdict).toBe(
      'undecided',
    )
  })

  test('treats numbers with and without separators as equal', () => {
    expect(verifyClaim('Kafka keeps 1000 records.', [QUOTE]).verdict).toBe('undecided')
    expect(verifyClaim('Kafka keeps 1001 records.', [QUOTE]).verdict).toBe('refused')
  })
})

describe('the verification of sentences of real pages', () => {
  const root = join(import.meta.dirname, '../../..')
  const all = ['internals/design', 'guides/jobs', 'internals/protocol', 'operate/operations'].flatMap((page) => {
    const snapshot = snapshotOf(page, readFileSync(join(root, `docs/${page}.md`), 'utf8'))
    return [...passagesOf(snapshot)].flatMap((passage) => passage.sentences)
  })
  const sentences = all.map(({ text }) => text)
  const prose = all.filter(({ isCode }) => !isCode).map(({ text }) => text)

  test('returns supported for each sentence with itself as the quote', () => {
    expect(sentences.length).toBeGreaterThan(300)
    expect(sentences.filter((sentence) => verifyClaim(sentence, [sentence]).verdict !== 'supported')).toEqual([])
  })

  test('does not return supported for a sentence with another number', () => {
    const changed = sentences.filter((each) => /(?<![\w.,])\d{2,4}(?![\w.,])/.test(each))
    const claims = changed.map((each) => each.replace(/(?<![\w.,])\d{2,4}(?![\w.,])/, '73921'))
    expect(changed.length).toBeGreaterThan(30)
    expect(claims.filter((claim, at) => verifyClaim(claim, [changed[at] ?? '']).verdict !== 'refused')).toEqual([])
  })

  test('does not return supported for a negated sentence or for the next sentence', () => {
    const denied = sentences.filter((each) => / (is|are|has) /.test(each))
    const claims = denied.map((each) => each.replace(/ (is|are|has) /, ' $1 not '))
    expect(claims.filter((claim, at) => verifyClaim(claim, [denied[at] ?? '']).verdict === 'supported')).toEqual([])
    // A sentence must not support the next sentence of the page. Only `prose` is used, because a shell command may contain the next command
    // and therefore support it.
    const next = prose.filter(
      (claim, at) => at > 0 && verifyClaim(claim, [prose[at - 1] ?? '']).verdict === 'supported',
    )
    expect(prose.length).toBeGreaterThan(300)
    expect(next).toEqual([])
  })
})
