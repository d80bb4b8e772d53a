import type { Player } from './player.ts'

/** Plays a sound, or pauses it; nothing while there is none. */
export function PlayButton({ player }: { readonly player: Player }) {
  if (!player.sound.value) return null
  return (
    <button type="button" onClick={() => (player.isPlaying.value ? player.stop() : player.play(restart(player)))}>
      {player.isPlaying.value ? 'Pause' : 'Play'}
    </button>
  )
}

/** Where playing goes on: at the beginning, once the end was heard. */
function restart({ at, sound }: Player): number {
  return sound.value && at.value < sound.value.duration - 0.05 ? at.value : 0
}
