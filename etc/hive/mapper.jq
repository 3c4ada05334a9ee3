# Turns the genesis file of a simulator into one that retrie reads. The accounts and header fields stay;
# `config` comes from the variables HIVE_*, since a simulator gives all forks there. Numbers stay decimal
# strings, which retrie reads as numbers: jq would round a large terminal total difficulty.

def variable($name): $ENV[$name] | if . == "" then null else . end;

def flag($name): variable($name) | if . == null then null else . == "1" or . == "true" end;

# A fork with blobs, by its name in `blobSchedule`, and its parameters if the simulator names none.
def blob_entry($fork; $target; $max; $fraction):
  "HIVE_\($fork | ascii_upcase)_" as $prefix
  | [variable($prefix + "BLOB_TARGET"), variable($prefix + "BLOB_MAX"),
     variable($prefix + "BLOB_BASE_FEE_UPDATE_FRACTION")] as $given
  | if variable($prefix + "TIMESTAMP") == null and ($given | all(. == null)) then {}
    else {($fork): {
      target: ($given[0] // $target),
      max: ($given[1] // $max),
      baseFeeUpdateFraction: ($given[2] // $fraction)
    }}
    end;

def blob_schedule:
  blob_entry("cancun"; 3; 6; 3338477)
  + blob_entry("prague"; 6; 9; 5007716)
  + blob_entry("osaka"; 6; 9; 5007716)
  + blob_entry("bpo1"; 10; 15; 8346193)
  + blob_entry("bpo2"; 14; 21; 11684671)
  + blob_entry("bpo3"; 9; 14; 8832827)
  + blob_entry("bpo4"; 9; 14; 8832827)
  + blob_entry("bpo5"; 9; 14; 8832827)
  + blob_entry("amsterdam"; 14; 21; 11684671);

.config.chainId as $stated
| .config = (
    {
      chainId: (variable("HIVE_CHAIN_ID") // $stated // 1),
      homesteadBlock: variable("HIVE_FORK_HOMESTEAD"),
      daoForkBlock: variable("HIVE_FORK_DAO_BLOCK"),
      daoForkSupport: flag("HIVE_FORK_DAO_VOTE"),
      eip150Block: variable("HIVE_FORK_TANGERINE"),
      eip155Block: variable("HIVE_FORK_SPURIOUS"),
      eip158Block: variable("HIVE_FORK_SPURIOUS"),
      byzantiumBlock: variable("HIVE_FORK_BYZANTIUM"),
      constantinopleBlock: variable("HIVE_FORK_CONSTANTINOPLE"),
      petersburgBlock: variable("HIVE_FORK_PETERSBURG"),
      istanbulBlock: variable("HIVE_FORK_ISTANBUL"),
      muirGlacierBlock: (variable("HIVE_FORK_MUIR_GLACIER") // variable("HIVE_FORK_MUIRGLACIER")),
      berlinBlock: variable("HIVE_FORK_BERLIN"),
      londonBlock: variable("HIVE_FORK_LONDON"),
      arrowGlacierBlock: (variable("HIVE_FORK_ARROW_GLACIER") // variable("HIVE_FORK_ARROWGLACIER")),
      grayGlacierBlock: variable("HIVE_FORK_GRAY_GLACIER"),
      mergeNetsplitBlock: variable("HIVE_MERGE_BLOCK_ID"),
      terminalTotalDifficulty: variable("HIVE_TERMINAL_TOTAL_DIFFICULTY"),
      terminalTotalDifficultyPassed: flag("HIVE_TERMINAL_TOTAL_DIFFICULTY_PASSED"),
      shanghaiTime: variable("HIVE_SHANGHAI_TIMESTAMP"),
      cancunTime: variable("HIVE_CANCUN_TIMESTAMP"),
      pragueTime: variable("HIVE_PRAGUE_TIMESTAMP"),
      osakaTime: variable("HIVE_OSAKA_TIMESTAMP"),
      bpo1Time: variable("HIVE_BPO1_TIMESTAMP"),
      bpo2Time: variable("HIVE_BPO2_TIMESTAMP"),
      bpo3Time: variable("HIVE_BPO3_TIMESTAMP"),
      bpo4Time: variable("HIVE_BPO4_TIMESTAMP"),
      bpo5Time: variable("HIVE_BPO5_TIMESTAMP"),
      amsterdamTime: variable("HIVE_AMSTERDAM_TIMESTAMP"),
      blobSchedule: (blob_schedule | if . == {} then null else . end),
      # retrie seals no blocks by authority; it says so, unless the merge has made that irrelevant.
      clique: (variable("HIVE_CLIQUE_PERIOD") | if . == null then null else {period: .} end),
      depositContractAddress: (
        variable("HIVE_DEPOSIT_CONTRACT_ADDRESS") // "0x00000000219ab540356cBB839Cbe05303d7705Fa"
      )
    }
    | with_entries(select(.value != null))
  )
