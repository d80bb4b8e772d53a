import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { Turns } from '#shared/jobs/turns.ts'

interface Waiter {
  readonly envelope: { readonly tenant: string }
  readonly name: string
}

let turns: Turns<Waiter>
let room: number | undefined
let isIdle: boolean
beforeEach(() => {
  vi.useFakeTimers()
  room = 2
  isIdle = false
  turns = new Turns<Waiter>({ slots: () => room, isIdle: () => isIdle })
})
afterEach(() => {
  vi.useRealTimers()
})

function enter(tenant: string, ...names: string[]): Waiter[] {
  return names.map((name) => {
    const job = { envelope: { tenant }, name: `${tenant}${name}` }
    turns.enter(job)
    return job
  })
}

/** Gives turns until there is no room. */
function sent(): Waiter[] {
  const jobs: Waiter[] = []
  for (let job = turns.next(); job; job = turns.next()) jobs.push(job)
  return jobs
}

/** Names in the order of their turns, when each job leaves before the next, after a while. */
function order(): string[] {
  const names: string[] = []
  for (let jobs = sent(); jobs.length > 0; jobs = sent()) {
    for (const job of jobs) {
      names.push(job.name)
      turns.leave(job)
      vi.advanceTimersByTime(1_000)
    }
  }
  return names
}

describe('turns', () => {
  it('let jobs go at once while there is room, and then none', () => {
    enter('a', '1', '2', '3')
    expect(sent().map(({ name }) => name)).toEqual(['a1', 'a2'])
    expect(turns.hasWaiting).toBe(true)
    room = 3
    expect(sent().map(({ name }) => name)).toEqual(['a3'])
    expect(turns.hasWaiting).toBe(false)
  })

  it('go round the tenants, each in its own order', () => {
    enter('a', '1', '2', '3', '4')
    enter('b', '1', '2')
    enter('c', '1')
    expect(order()).toEqual(['a1', 'b1', 'c1', 'a2', 'b2', 'a3', 'a4'])
  })

  it('give a tenant that comes back no second turn in a round', () => {
    room = 1
    enter('a', '1', '2')
    enter('b', '1')
    const [first] = sent()
    enter('a', '3')
    turns.leave(first as Waiter)
    expect(order()).toEqual(['b1', 'a2', 'a3'])
  })

  it('put a job first that had its turn before', () => {
    room = 1
    enter('a', '1', '2')
    enter('b', '1', '2')
    const [first] = sent()
    turns.leave(first as Waiter)
    const [again] = enter('b', '3')
    turns.leave(again as Waiter)
    turns.enterFirst(again as Waiter)
    vi.advanceTimersByTime(1_000)
    expect(order()).toEqual(['b3', 'a2', 'b1', 'b2'])
  })

  it('let more go where jobs start quickly: as many as start while the next are on their way', () => {
    room = 1
    enter('a', '1', '2', '3', '4', '5', '6', '7')
    const rounds: string[][] = []
    for (let i = 0; i < 3; i++) {
      const jobs = sent()
      rounds.push(jobs.map(({ name }) => name))
      for (const job of jobs) turns.leave(job)
    }
    expect(rounds).toEqual([['a1'], ['a2', 'a3'], ['a4', 'a5', 'a6', 'a7']])
  })

  it('give none while nothing can be sent', () => {
    room = undefined
    enter('a', '1')
    expect(sent()).toEqual([])
    room = 1
    expect(sent().map(({ name }) => name)).toEqual(['a1'])
  })

  it('pass over what left before', () => {
    const [, second] = enter('a', '1', '2', '3')
    const [only] = enter('b', '1')
    turns.leave(second as Waiter)
    turns.leave(only as Waiter)
    turns.leave(only as Waiter)
    expect(order()).toEqual(['a1', 'a3'])
  })

  it('tell how many would run before a new job of a tenant', () => {
    enter('a', '1', '2', '3', '4', '5')
    expect([turns.ahead('a'), turns.ahead('b')]).toEqual([5, 1])
    sent()
    expect([turns.ahead('a'), turns.ahead('b')]).toEqual([5, 3])
    enter('b', '1')
    expect([turns.ahead('a'), turns.ahead('b')]).toEqual([6, 5])
  })

  it('do not wait for jobs that the queue must have lost: old ones, while workers have nothing to do', () => {
    enter('a', '1', '2', '3')
    sent()
    vi.advanceTimersByTime(60_000)
    expect(sent()).toEqual([])
    isIdle = true
    expect(sent().map(({ name }) => name)).toEqual(['a3'])
    enter('a', '4', '5')
    vi.advanceTimersByTime(500)
    expect(sent().map(({ name }) => name)).toEqual(['a4'])
    expect(turns.hasWaiting).toBe(true)
  })
})
